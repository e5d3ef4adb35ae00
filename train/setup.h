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

// Sets the process's switches, threads and random state, and the device's memory limit.
void apply_settings(const TrainConfig& config, Device device);

// How images reach the device. A training set is augmented; a test set is not.
InputOptions input_options_of(const TrainConfig& config, Device device, bool training);

// Images of the smallest micro-batch of an epoch.
int64_t smallest_micro_batch(const TrainConfig& config, int64_t train_images);

// The model that the flags and the data ask for, on `where`.
ModelOptions model_options_of(const TrainConfig& config, const RunInfo& info, Device where);

// Batch norm may refuse a pass of one image, and a run would learn that at the end of its first
// epoch: tried on a meta device. Throws InvalidArgument naming --batch.
void check_smallest_batch(const TrainConfig& config, const RunInfo& info, Device device);

// What a saved run and one that goes on from it must agree on, by name.
std::map<std::string, std::string> facts_of(const TrainConfig& config, const RunInfo& info);

// The run that --resume names. Throws InvalidArgument if there is none or it was another's.
Checkpoint load_run(const TrainConfig& config, const RunInfo& info);

}  // namespace headroom
