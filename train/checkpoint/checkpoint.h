// Checkpoint files of `train`: the weights as safetensors, which other programs read, and beside
// them the trainer's whole state, from which a run goes on bit for bit.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "train/trainer.h"

namespace headroom {

struct SafetensorsFile;

struct Checkpoint {
  std::vector<NamedTensor> model;         // Module::state_dict()
  std::vector<OptimizerState> optimizer;  // Optimizer::state_dict()
  TrainerState trainer;
  // What the run was made with ("model", "classes", "optimizer", ...), to refuse a mismatch by
  // name.
  std::map<std::string, std::string> facts;
};

// Where the state of the checkpoint at `path` lies: "run.safetensors" has "run.state.safetensors".
std::string state_path_of(const std::string& path);

// The state file that a resume from `path` reads: that of the checkpoint, or `path` itself where it
// names a state file.
std::string state_path_to_read(const std::string& path);

// Writes both files, each atomically: to a temporary name in the same folder, flushed to disk,
// renamed. A save that is killed or fails leaves the previous files whole. The state file is
// complete in itself, so a resume never mixes two saves. Throws DataError naming the file and the
// system's reason (disk full, no such folder, ...), with nothing left under a temporary name.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);

// Reads the state file of `path`, or that which `path` names, into tensors on the CPU. Throws
// InvalidArgument naming the file and what is wrong: missing, not safetensors, truncated, a header
// that asks for more than the file holds.
Checkpoint load_checkpoint(const std::string& path);

// What a state file holds that was read already; `file` is for messages. Throws InvalidArgument
// unless it is the trainer's state.
Checkpoint checkpoint_from(const SafetensorsFile& content, const std::string& file);

// Throws InvalidArgument naming the flag unless a file could be created at `path` now: so a run
// does not train for an hour and then fail to save.
void check_writable(const std::string& flag, const std::string& path);

// Throws InvalidArgument naming both flags if two of the paths, each with the flag that gave it,
// are one file, however they are spelled. Empty paths are none, and --resume may read what --save
// writes.
void check_distinct(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace headroom
