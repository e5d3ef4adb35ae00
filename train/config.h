// The configuration of a training run: one field per flag of `train`, with the defaults that the
// flags have. What they leave open ("auto", 0, -1) is settled when a Trainer is made, once the data
// set and the device are known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/node.h"
#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/settings.h"
#include "core/base/shape.h"
#include "nn/models/models.h"

namespace headroom {

constexpr int64_t kDefaultEpochs = 3;
constexpr int64_t kDefaultLoaderThreads = 4;
// Of a run: the learning rates lie in a table with one f32 per step.
constexpr int64_t kMaxSteps = int64_t{1} << 24;

// What a run does when a step or an evaluation does not fit into memory.
enum class OnOutOfMemory : uint8_t { stop, halve_batch };

// What a run does after a step that left the device fuller than a threshold.
enum class OnThreshold : uint8_t { warn, empty_cache, checkpoint, halve_batch, stop };

enum class Augment : uint8_t { automatic, none, crop, flip, crop_flip };

struct TrainConfig {
  // Model and data
  std::string model = "lenet";
  Classifier classifier = Classifier::automatic;
  std::string data;                      // empty: the embedded digits
  int64_t image_size = 0;                // 0: the data's own size
  Augment augment = Augment::automatic;  // crop_flip for color sets, none for gray ones
  bool resident = false;                 // keep the training set on the device as bytes
  int64_t loader_threads = -1;           // -1: kDefaultLoaderThreads

  // Batches and length
  int64_t batch = 64;      // images per forward and backward pass
  int64_t accum = 1;       // passes per optimizer step
  int64_t eval_batch = 0;  // 0: as batch
  int64_t epochs = 0;      // 0: kDefaultEpochs, unless steps are given
  int64_t steps = 0;       // optimizer steps; 0: as epochs say
  bool drop_last = false;
  bool evaluate = true;
  bool eval_with_grad = false;  // evaluation records a tape that nobody uses: to see what it takes

  // Optimizer
  std::string optimizer = "sgd";  // sgd, adam, adamw
  double lr = 0;                  // 0: 0.05 for sgd, 1e-3 for adam and adamw
  double momentum = 0.9;
  bool nesterov = true;
  double weight_decay = 5e-4;  // parameters of two or more dimensions only
  std::string schedule = "cosine";
  double warmup = -1;    // below 1: a share of all steps; else steps; -1: as the schedule has it
  double clip_norm = 0;  // 0: no clipping
  double label_smoothing = 0;

  // Precision and memory
  std::optional<DType> amp;   // f16 or bf16
  double init_scale = 65536;  // of the loss scaler, f16 only
  bool checkpoint = false;
  bool in_place = true;
  bool step_in_backward = false;
  SavePolicy save_policy = SavePolicy::recompute;
  bool cudnn = true;
  bool cudnn_benchmark = false;
  int64_t workspace_limit_bytes = int64_t{32} << 20;
  Tf32 tf32 = Tf32::conv;
  bool deterministic = false;
  MemoryFormat layout = MemoryFormat::channels_last;
  bool expandable_segments = false;
  int64_t memory_limit_bytes = 0;  // 0: none
  // halve_batch takes the step back and tries it again with half the micro-batch and the same
  // images; likewise an evaluation.
  OnOutOfMemory on_oom = OnOutOfMemory::stop;
  double memory_threshold = 0;  // of the device's memory, or of the limit; 0: none
  OnThreshold on_threshold = OnThreshold::warn;

  // Run
  std::string device = "auto";  // auto, cpu, cuda, meta:cpu, meta:cuda
  uint64_t seed = 0;
  int64_t threads = 0;  // of CPU kernels; 0: all cores
  std::string save;     // checkpoint to write after every epoch and at the end
  std::string resume;   // checkpoint to go on from
  std::string log;      // JSON lines, one per step and per epoch
  bool json = false;
  std::string memory_report;  // who holds what over one step: a page (.html) or JSON
  std::string conv_report;    // what each convolution ran in: text, or JSON (.json)
  std::string snapshot;       // one step's memory for PyTorch's viewer
  std::string trace;          // what the host does in the first steps, in Chrome's trace format
  int64_t trace_steps = 3;
  bool launch_blocking = launch_blocking_is_asked_for();  // every kernel waits for its own end
};

// The model as messages name it: "lenet", "lenet (classifier conv)".
std::string model_text(const TrainConfig& config);

// What --optimizer and --device take.
const std::vector<std::string>& optimizer_names();
const std::vector<std::string>& device_names();

// Checks every value that can be checked without opening anything. Throws InvalidArgument naming
// the flag, what is allowed and what came.
void validate(const TrainConfig& config);

// The micro-batch of evaluation.
inline int64_t eval_batch_of(const TrainConfig& config) {
  return config.eval_batch > 0 ? config.eval_batch : config.batch;
}
Classifier classifier_of(const TrainConfig& config);
double lr_of(const TrainConfig& config);
double warmup_of(const TrainConfig& config);  // 0.15 for cosine, 0.3 for one-cycle, else none

// The device that "auto" and names stand for. Throws InvalidArgument when it is not there; `note`
// (optional) receives why auto took the CPU.
Device device_of(const TrainConfig& config, std::string* note = nullptr);

}  // namespace headroom
