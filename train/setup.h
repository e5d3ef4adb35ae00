// What a configuration asks for, made: the parts of a run that depend on its flags alone.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/models/models.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config.h"
#include "train/data/dataset.h"
#include "train/input.h"
#include "train/trainer.h"

namespace headroom {

// The data sets that --data names, described in `info`; settles what the flags left open about
// them. Throws InvalidArgument for anything wrong with them.
DataSplit open_data_set(TrainConfig& config, RunInfo& info);

// The optimizer of all parameters, without decay for those of one dimension.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& config, const Module& model);

// Tries the places of all files that are written at the end, so that no run is lost to a wrong
// name. Throws InvalidArgument naming the flag.
void check_writable(const TrainConfig& config);

// The learning rate of each of `total_steps` steps.
std::vector<float> make_rates(const TrainConfig& config, int64_t total_steps);

// Sets the process's switches, threads and random state, and the device's memory limit and kind of
// segments. Throws InvalidArgument where the device has no expandable ones.
void apply_settings(const TrainConfig& config, Device device);

// Makes the configuration say what runs.
void settle(TrainConfig& config, const RunInfo& info, Device device);

// How images reach the device. A training set is augmented; a test set is not.
InputOptions input_options_of(const TrainConfig& config, Device device, bool training);

// The model that the flags and the data ask for, on `where`.
ModelOptions model_options_of(const TrainConfig& config, const RunInfo& info, Device where);

// Whether a run that goes on at image `position` of an epoch comes to a pass of one image, with
// epochs cut into windows of `window` images and these into passes of `batch`.
bool comes_to_one_image(const TrainConfig& config, int64_t batch, int64_t window, int64_t position,
                        int64_t train_images);

// What is allowed, but worth a note at the start.
std::vector<std::string> warnings_of(const TrainConfig& config, Device device);

// What the model says to a pass of one image, which batch norm may refuse; empty if it takes one.
// Tried on a meta device.
std::string why_not_one_image(const TrainConfig& config, const RunInfo& info, Device device);

// Throws InvalidArgument naming --batch if a run that begins at image `position` would come to a
// pass of one image that the model refuses: it would learn so at the end of an epoch.
void check_passes(const TrainConfig& config, const RunInfo& info, Device device, int64_t window,
                  int64_t position);

// What a saved run and one that goes on from it must agree on, by name.
std::map<std::string, std::string> facts_of(const TrainConfig& config, const RunInfo& info);

// The run that --resume names. Throws InvalidArgument if there is none or it was another's.
Checkpoint load_run(const TrainConfig& config, const RunInfo& info);

}  // namespace headroom
