// Checks of a configuration that need no file and no device.
#include "train/config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "optim/schedule.h"
#include "train/data/dataset.h"
#include "train/data/loader.h"

namespace headroom {
namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 24;
constexpr int64_t kMaxThreads = 4096;

void check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  CHECK_ARG(value >= low && value <= high, flag, ": must lie in ", low, " .. ", high, ", got ",
            value);
}

void check_real(const char* flag, double value, double low, double high) {
  CHECK_ARG(std::isfinite(value) && value >= low && value <= high, flag, ": must lie in ", low,
            " .. ", high, ", got ", value);
}

void check_name(const char* flag, const std::string& value,
                const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  std::string list;
  for (const std::string& name : allowed) list += (list.empty() ? "" : ", ") + name;
  throw InvalidArgument(detail::concat(flag, ": allowed are ", list, "; got '", value, "'"));
}

}  // namespace

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = {"sgd", "adam", "adamw"};
  return names;
}

const std::vector<std::string>& device_names() {
  static const std::vector<std::string> names = {"auto", "cpu", "cuda", "meta:cpu", "meta:cuda"};
  return names;
}

void validate(const TrainConfig& c) {
  constexpr double kLargeRate = 1e6;
  check_name("--model", c.model, model_names());
  const std::vector<Classifier> classifiers = classifiers_of(c.model);
  CHECK_ARG(std::count(classifiers.begin(), classifiers.end(), classifier_of(c)) > 0,
            "--classifier ", name_of(c.classifier), ": --model ", c.model, " has none such");
  check_name("--optimizer", c.optimizer, optimizer_names());
  check_name("--schedule", c.schedule, schedule_names());
  check_name("--device", c.device, device_names());
  check_range("--image-size", c.image_size, 0, kMaxImageSize);
  check_range("--batch", c.batch, 1, kMaxBatch);
  check_range("--accum", c.accum, 1, kMaxBatch);
  check_range("--eval-batch", c.eval_batch, 0, kMaxBatch);
  check_range("--epochs", c.epochs, 0, kMaxSteps);
  check_range("--steps", c.steps, 0, kMaxSteps);
  CHECK_ARG(c.epochs == 0 || c.steps == 0, "--epochs and --steps: give one of them, not both (got ",
            c.epochs, " and ", c.steps, ")");
  CHECK_ARG(c.evaluate || !c.eval_with_grad,
            "--eval-with-grad: needs an evaluation, and --no-eval leaves it out");
  check_range("--trace-steps", c.trace_steps, 1, kMaxSteps);
  check_range("--threads", c.threads, 0, kMaxThreads);
  check_range("--loader-threads", c.loader_threads, -1, kMaxLoaderThreads);
  check_real("--lr", c.lr, 0, kLargeRate);
  check_real("--momentum", c.momentum, 0, 1);
  check_real("--weight-decay", c.weight_decay, 0, kLargeRate);
  check_real("--warmup", warmup_of(c), 0, 1e12);
  CHECK_ARG(c.warmup < 1 || c.warmup == std::floor(c.warmup),
            "--warmup: needs a share of all steps below 1 or a whole number of steps, got ",
            c.warmup);
  check_real("--clip-norm", c.clip_norm, 0, 1e30);
  check_real("--label-smoothing", c.label_smoothing, 0, 1);
  check_real("--init-scale", c.init_scale, 0x1p-24, 0x1p40);
  check_range("--workspace-limit", c.workspace_limit_bytes, 0, int64_t{1} << 50);
  check_range("--memory-limit", c.memory_limit_bytes, 0, int64_t{1} << 50);
  CHECK_ARG(
      !c.step_in_backward || c.amp != DType::f16,
      "--step-in-backward: --amp=f16 needs all gradients at once to see whether any overflowed; "
      "--amp=bf16 goes with it");
  CHECK_ARG(!c.step_in_backward || c.clip_norm == 0,
            "--step-in-backward: --clip-norm needs the norm of all gradients at once, got ",
            c.clip_norm);
  CHECK_ARG(!c.step_in_backward || c.on_oom == OnOutOfMemory::stop,
            "--step-in-backward: --on-oom halve-batch cannot take back a step that is half done");
  check_real("--memory-threshold", c.memory_threshold, 0, 1);
  CHECK_ARG(!c.amp || is_half(*c.amp), "--amp: allowed are f16 and bf16, got ", name_of(*c.amp));
}

Classifier classifier_of(const TrainConfig& config) {
  const std::vector<Classifier> classifiers = classifiers_of(config.model);
  const bool is_open = config.classifier == Classifier::automatic && !classifiers.empty();
  return is_open ? classifiers.front() : config.classifier;
}

std::string model_text(const TrainConfig& config) {
  const Classifier classifier = classifier_of(config);
  const std::vector<Classifier> classifiers = classifiers_of(config.model);
  if (classifiers.empty() || classifier == classifiers.front()) return config.model;
  return config.model + " (classifier " + name_of(classifier) + ")";
}

double lr_of(const TrainConfig& config) {
  constexpr double kSgdRate = 0.05, kAdamRate = 1e-3;
  if (config.lr > 0) return config.lr;
  return config.optimizer == "sgd" ? kSgdRate : kAdamRate;
}

double warmup_of(const TrainConfig& config) {
  constexpr double kCosineShare = 0.15, kOneCycleShare = 0.3, kOpen = -1;
  if (config.warmup != kOpen) return config.warmup;
  return config.schedule == "cosine"      ? kCosineShare
         : config.schedule == "one-cycle" ? kOneCycleShare
                                          : 0;
}

Device device_of(const TrainConfig& config, std::string* note) {
  if (config.device != "auto") {
    const Device device = parse_device(config.device);
    CHECK_ARG(has_runtime(device), "--device ", config.device,
              ": not available (no usable NVIDIA GPU, or built without CUDA); allowed here: cpu, ",
              "meta:cpu, meta:cuda");
    return device;
  }
  if (has_runtime(Device::cuda())) return Device::cuda();
  if (note) *note = "no usable NVIDIA GPU: training on the CPU";
  return Device::cpu();
}

}  // namespace headroom
