// The training loop: windows of micro-batches, one optimizer step each, evaluation between epochs,
// and the accounting of memory and time that the program reports.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/caching_allocator.h"
#include "nn/module.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "train/config.h"
#include "train/data/dataset.h"
#include "train/data/sampler.h"

namespace headroom {

// What is known when training starts.
struct RunInfo {
  std::string device_name;         // "cuda", "cpu", "meta:cuda"
  std::string device_description;  // "NVIDIA H200, ..."
  std::string data_name;           // "digits", "mnist", "cifar-10", "random", a folder's
  int64_t parameter_count = 0;
  int64_t train_images = 0, test_images = 0, classes = 0;
  ImageShape image_shape;
  int64_t epochs = 0;       // begun, in all
  int64_t total_steps = 0;  // optimizer steps of the whole run
  int64_t steps_per_epoch = 0;
  int64_t first_step = 0;  // above 0 after a resume
  std::vector<std::string> warnings;
};

struct StepInfo {
  int64_t step = 0;         // optimizer steps done, over all epochs and resumes
  int64_t epoch = 0;        // from 1
  int64_t images = 0;       // of this step
  int64_t images_seen = 0;  // in this process
  double seconds = 0;       // training time of this process, evaluation left out
  int64_t peak_bytes = 0;   // allocated, the most in any step so far
  // Mean loss per counted sample of this step's window, and the learning rate that it used. Both
  // wait for the device, so call them only for steps that are shown or logged.
  std::function<double()> read_loss, read_lr;
};

struct EpochInfo {
  int64_t epoch = 0;         // from 1
  double train_loss = 0;     // mean per sample over the epoch
  double test_accuracy = 0;  // fraction
  double test_loss = 0;
  bool evaluated = false;
  double seconds = 0;     // training time of this process so far
  double loss_scale = 0;  // 0 without a scaler
};

// Bytes of one phase: the peak of allocated bytes, with its parts, and of reserved bytes. Beside
// them, and in none of them, the peaks of the host memory that saved tensors wait in.
struct PhasePeak {
  int64_t allocated = 0;
  int64_t reserved = 0;
  BytesByTag parts{};  // they sum to `allocated`
  int64_t host_allocated = 0;
  int64_t host_reserved = 0;
};

struct RunResult {
  int64_t steps = 0;          // optimizer steps done over all
  int64_t skipped_steps = 0;  // by the loss scaler, in this process
  double train_loss = 0;      // of the last epoch (or what ran of it)
  std::optional<double> test_accuracy, test_loss;
  double step_ms = 0;       // mean optimizer step, the first of the process left out
  double images_per_s = 0;  // likewise
  // Over training steps after the first (the first, if it was the only one). Attempts that ran out
  // of memory do not count.
  PhasePeak peak;
  PhasePeak first_step;  // with what only the first step does: state, plan searches
  PhasePeak evaluation;
  int64_t workspace_fallbacks = 0;
  int64_t out_of_memory_retries = 0;  // halvings of the batch, evaluations included
  bool interrupted = false;
  bool over_threshold = false;  // ended for that, with OnThreshold::stop
  double loss_scale = 0;
};

// A step or an evaluation that ran out of memory and is tried again with fewer images at a time.
struct OutOfMemoryInfo {
  bool in_evaluation = false;
  int64_t step = 0;     // the one that failed; for an evaluation, the last one done
  std::string message;  // of the failure
  OutOfMemory::Facts facts;
  // Images of a pass and passes per step, before and from now on; for an evaluation accum is 1.
  int64_t batch_before = 0, accum_before = 0;
  int64_t batch = 0, accum = 0;
};

// After a step that left the device fuller than the threshold.
struct ThresholdInfo {
  int64_t step = 0;
  int64_t used_bytes = 0;      // of the limit, what is reserved; of the device, what all use
  int64_t capacity_bytes = 0;  // the limit, or the device's memory
  OnThreshold action = OnThreshold::warn;  // what was done; warn if nothing else was left to do
  int64_t used_after_bytes = 0;
  int64_t batch = 0, accum = 0;  // from now on
};

// All gradients of a step are there, and the optimizer has not used them yet; with
// TrainConfig::step_in_backward it has, and none is left.
struct GradientInfo {
  int64_t step = 0;
  Module* model = nullptr;
  // What they are multiplied with: the loss scale, or 1. Waits for the device.
  std::function<double()> read_scale;
};

// With TrainConfig::step_in_backward: one parameter's gradient, complete for the step, before the
// optimizer uses and frees it. No loss scale goes with that.
struct UsedGradientInfo {
  int64_t step = 0;
  Module* model = nullptr;
  Tensor parameter;
};

// Called from the training thread. Exceptions pass through the trainer.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_start(const RunInfo&) {}
  // Before anything of the step is allocated; again if the step is tried again.
  virtual void on_step_begin(int64_t /*step*/) {}
  virtual void on_used_gradient(const UsedGradientInfo&) {}
  virtual void on_gradients(const GradientInfo&) {}
  virtual void on_step(const StepInfo&) {}
  virtual void on_evaluation_begin() {}
  virtual void on_out_of_memory(const OutOfMemoryInfo&) {}
  virtual void on_threshold(const ThresholdInfo&) {}
  virtual void on_epoch(const EpochInfo&) {}
  // After a checkpoint was written.
  virtual void on_save(const std::string& /*path*/, int64_t /*step*/) {}
};

// Everything that a checkpoint holds besides the weights, for bit-exact resumption.
struct TrainerState {
  int64_t step = 0;
  SamplerState sampler;
  uint64_t generator_seed = 0, generator_offset = 0;
  double loss_sum = 0;  // of the running epoch
  double loss_count = 0;
  double scale = 0;  // loss scaler; 0 without one
  int64_t growth_tracker = 0;
};

class Trainer {
 public:
  // Opens the data, builds model and optimizer, settles what the configuration left open, and
  // resumes if asked. Throws InvalidArgument for anything wrong with flags, files or the device,
  // OutOfMemory when the model does not fit.
  explicit Trainer(const TrainConfig& config);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const RunInfo& info() const;
  // As settled; with OnOutOfMemory::halve_batch, batch, accum and eval_batch follow what runs.
  const TrainConfig& config() const;
  Device device() const;
  Module& model();
  int64_t steps_done() const;  // optimizer steps, over all epochs and resumes

  // Trains to the end, or until `stop` returns true after a step; saves as configured. May be
  // called once.
  RunResult run(TrainObserver& observer, const std::function<bool()>& stop = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headroom
