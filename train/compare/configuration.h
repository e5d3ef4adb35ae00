// The command line of `memory-compare`: the flags that all rows share, and the configurations that
// make the rows.
#pragma once

#include <string>
#include <vector>

#include "core/base/device.h"
#include "train/config.h"

namespace headroom {

// Optimizer steps of a row, unless --steps or --epochs say otherwise.
constexpr int64_t kCompareSteps = 10;

// One row: '+'-joined items, each a flag of `train` without its dashes ("amp=bf16", "no-inplace").
// "base" stands for no item. Two items are the comparison's own:
//   accum=N  N passes per optimizer step over the same images: the micro-batch is an N-th of them
//   batch=N  another number of images per pass, and so per step
struct Configuration {
  std::string name;
  std::vector<std::string> items;
  std::vector<std::string> flags;  // what it adds to the shared flags: "--batch=16", "--accum=4"
  TrainConfig config;              // of both together
  std::string left_out;            // why it is not run; empty: it is
};

struct CompareLine {
  enum class Action { compare, show_help, show_version };
  Action action = Action::compare;
  std::vector<std::string> shared;  // flags of train
  TrainConfig config;               // what they make
  std::vector<Configuration> rows;
  std::string json, csv, html;  // files to write; empty: none
  std::string command;          // as typed, quoted for a shell
};

// Reads the arguments, without the program's name: flags, then, after a lone "--", configurations;
// without a "--", a list that covers every remedy. A configuration of the default list that cannot
// be had with these flags is left out with the reason. Throws InvalidArgument for anything wrong
// with flags and configurations: unknown, given twice or the same as another, values out of range,
// a batch that accum does not divide, what all rows have to share.
CompareLine parse_compare_line(const std::vector<std::string>& arguments);

// Leaves out the rows with an item that means nothing on the device.
void leave_out_meaningless(std::vector<Configuration>& rows, Device device);

std::string compare_help_text();  // at most 80 columns

}  // namespace headroom
