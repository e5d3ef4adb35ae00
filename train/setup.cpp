// The parts of a run.
#include "train/setup.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/base/parallel.h"
#include "core/memory/caching_allocator.h"
#include "core/tensor/generator.h"
#include "optim/schedule.h"
#include "train/checkpoint/atomic_file.h"

namespace headroom {
namespace {

// "digits" of "digits train".
std::string name_of_both(const std::string& training_set) {
  const std::string suffix = " train";
  const size_t at = training_set.rfind(suffix);
  const bool ends_with_it = at != std::string::npos && at + suffix.size() == training_set.size();
  return ends_with_it ? training_set.substr(0, at) : training_set;
}

// What is wrong with the data is wrong with the flag that names it.
DataSplit open_named_data(const std::string& spec, const DataOptions& options) {
  try {
    return open_data(spec, options);
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    throw InvalidArgument((message.starts_with("data: ") ? "--" : "--data: ") + message);
  }
}

// A name may be too long, a disk full.
void check_creatable(const char* flag, const std::string& path) {
  try {
    try_to_create(path);
  } catch (const DataError& error) {
    throw InvalidArgument(detail::concat(flag, " ", error.what()));
  }
}

Checkpoint read_saved_run(const TrainConfig& config) {
  try {
    return load_checkpoint(config.resume);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(detail::concat("--resume: ", error.what()));
  }
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& c, const Module& model) {
  auto groups = decay_groups(model.parameters(), c.weight_decay);
  if (c.optimizer == "sgd") {
    SgdOptions options;
    options.lr = lr_of(c);
    options.momentum = c.momentum;
    options.nesterov = c.nesterov;
    return std::make_unique<Sgd>(std::move(groups), options);
  }
  AdamOptions options;
  options.lr = lr_of(c);
  options.decoupled = c.optimizer == "adamw";
  return std::make_unique<Adam>(std::move(groups), options);
}

void check_writable(const TrainConfig& config) {
  const std::pair<const char*, const std::string&> files[] = {
      {"--save", config.save},
      {"--memory-report", config.memory_report},
      {"--conv-report", config.conv_report},
      {"--snapshot", config.snapshot},
      {"--trace", config.trace},
  };
  for (const auto& [flag, path] : files) {
    if (path.empty()) continue;
    check_writable(flag, path);
    check_creatable(flag, path);
  }
  if (!config.save.empty()) check_creatable("--save", state_path_of(config.save));
  // Each file that a run writes or goes on from, by the flag that names it.
  std::vector<std::pair<std::string, std::string>> all = {{"--log", config.log}};
  for (const auto& [flag, path] : files) all.emplace_back(flag, path);
  if (!config.save.empty()) all.emplace_back("--save", state_path_of(config.save));
  if (!config.resume.empty()) all.emplace_back("--resume", state_path_to_read(config.resume));
  check_distinct(all);
  const std::string& report = config.memory_report;
  CHECK_ARG(report.empty() || report.ends_with(".html") || report.ends_with(".json"),
            "--memory-report ", report, ": needs a name that ends in .html or .json");
}

DataSplit open_data_set(TrainConfig& config, RunInfo& info) {
  DataOptions options;
  options.image_size = config.image_size;
  DataSplit data = open_named_data(config.data, options);
  const ImageShape& shape = data.train->shape();
  CHECK_ARG(shape.height == shape.width, "--data: images must be square for these models, got ",
            shape.height, "x", shape.width, "; --image-size makes them so");
  if (config.augment == Augment::automatic) {
    config.augment = shape.channels >= 3 ? Augment::crop_flip : Augment::none;
  }
  if (config.loader_threads < 0) config.loader_threads = kDefaultLoaderThreads;
  info.data_name = name_of_both(data.train->name());
  info.train_images = data.train->size();
  info.test_images = data.test ? data.test->size() : 0;
  info.classes = data.train->classes();
  info.image_shape = shape;
  for (const std::string& warning : data.train->warnings()) info.warnings.push_back(warning);
  return data;
}

void apply_settings(const TrainConfig& c, Device device) {
  Settings& s = settings();
  s.cudnn = c.cudnn;
  s.cudnn_benchmark = c.cudnn_benchmark;
  s.deterministic = c.deterministic;
  s.tf32 = c.tf32;
  s.workspace_limit_bytes = c.workspace_limit_bytes;
  s.launch_blocking = c.launch_blocking;
  set_num_threads(static_cast<int>(c.threads));
  allocator_of(device).set_expandable_segments(c.expandable_segments);
  allocator_of(device).set_memory_limit(c.memory_limit_bytes);
  manual_seed(c.seed);
}

void settle(TrainConfig& config, const RunInfo& info, Device device) {
  config.device = name_of(device);
  config.image_size = info.image_shape.height;
  config.eval_batch = eval_batch_of(config);
  config.lr = lr_of(config);
  config.warmup = warmup_of(config);
  config.threads = num_threads();
}

std::vector<float> make_rates(const TrainConfig& config, int64_t total_steps) {
  ScheduleOptions schedule;
  schedule.kind = parse_schedule(config.schedule);
  schedule.lr = lr_of(config);
  schedule.total_steps = total_steps;
  const double warmup = warmup_of(config);
  const double share = warmup * static_cast<double>(total_steps);
  schedule.warmup_steps = warmup < 1 ? std::max<int64_t>(warmup > 0, static_cast<int64_t>(share))
                                     : static_cast<int64_t>(warmup);
  // Two drops, whatever the length: thirds rounded up.
  constexpr int64_t kParts = 3;
  const int64_t rest = std::max<int64_t>(1, total_steps - schedule.warmup_steps);
  schedule.step_every = (rest + kParts - 1) / kParts;
  return make_schedule(schedule);
}

bool comes_to_one_image(const TrainConfig& config, int64_t batch, int64_t window, int64_t position,
                        int64_t train_images) {
  const auto leaves_one = [batch](int64_t images) {
    return images == 1 || (images > 0 && (batch == 1 || images % batch == 1));
  };
  const auto in_epoch_from = [&](int64_t begin) {
    const int64_t left = train_images - begin;
    return (left >= window && leaves_one(window)) ||
           (!config.drop_last && leaves_one(left % window));
  };
  return in_epoch_from(position) || in_epoch_from(0);
}

std::vector<std::string> warnings_of(const TrainConfig& config, Device device) {
  std::vector<std::string> out;
  if (config.deterministic && config.cudnn_benchmark && device.is_cuda()) {
    out.emplace_back(
        "--cudnn-benchmark chooses plans by their time: the next run may choose others, and differ "
        "in spite of --deterministic");
  }
  if (!config.save.empty() && device.is_meta()) {
    out.emplace_back("--save: a meta device holds no weights, so nothing is written");
  }
  return out;
}

InputOptions input_options_of(const TrainConfig& config, Device device, bool training) {
  InputOptions options;
  options.device = device;
  options.dtype = config.amp.value_or(DType::f32);
  options.layout = config.layout;
  options.crop =
      training && (config.augment == Augment::crop || config.augment == Augment::crop_flip);
  options.flip =
      training && (config.augment == Augment::flip || config.augment == Augment::crop_flip);
  options.resident = training && config.resident;
  options.max_batch = training ? config.batch : eval_batch_of(config);
  options.threads = config.loader_threads;
  options.seed = config.seed;
  return options;
}

ModelOptions model_options_of(const TrainConfig& config, const RunInfo& info, Device where) {
  ModelOptions options;
  options.classes = info.classes;
  options.channels = info.image_shape.channels;
  options.image_size = info.image_shape.height;
  options.classifier = config.classifier;
  options.in_place = config.in_place;
  options.checkpoint = config.checkpoint;
  options.tensor = {DType::f32, where, config.layout};
  return options;
}

std::string why_not_one_image(const TrainConfig& config, const RunInfo& info, Device device) {
  // Not the run's own allocator, whose cache this would change: any meta device refuses alike.
  const bool is_taken = device == Device::meta(DeviceType::cpu);
  const Device meta = Device::meta(is_taken ? DeviceType::cuda : DeviceType::cpu);
  const GeneratorState random = default_generator().state();
  const auto complaint_at = [&](int64_t images) -> std::string {
    try {
      const ImageShape& shape = info.image_shape;
      const NoGrad no_grad;
      (*make_model(config.model, model_options_of(config, info, meta)))(empty(
          {images, shape.channels, shape.height, shape.width}, {DType::f32, meta, config.layout}));
      return {};
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  std::string complaint = complaint_at(1);
  // What two images meet as well is no matter of the batch, and comes up when the model is made.
  if (!complaint.empty() && !complaint_at(2).empty()) complaint.clear();
  allocator_of(meta).empty_cache();
  default_generator().set_state(random);
  return complaint;
}

void check_passes(const TrainConfig& config, const RunInfo& info, Device device, int64_t window,
                  int64_t position) {
  const int64_t images = info.train_images;
  const bool comes_to_one = comes_to_one_image(config, config.batch, window, position, images);
  const std::string why = comes_to_one ? why_not_one_image(config, info, device) : std::string();
  CHECK_ARG(why.empty(), "--batch ", config.batch, ": of ", images,
            " images one is left for a pass of its own, and that does not work: ", why,
            "; take another --batch", config.batch > 1 ? ", or --drop-last" : "");
}

std::map<std::string, std::string> facts_of(const TrainConfig& config, const RunInfo& info) {
  return {{"model", model_text(config)},
          {"classes", std::to_string(info.classes)},
          {"image", detail::concat(info.image_shape.channels, "x", info.image_shape.height, "x",
                                   info.image_shape.width)},
          {"train_images", std::to_string(info.train_images)},
          {"optimizer", config.optimizer},
          {"amp", config.amp ? name_of(*config.amp) : "off"},
          {"seed", std::to_string(config.seed)}};
}

Checkpoint load_run(const TrainConfig& config, const RunInfo& info) {
  Checkpoint checkpoint = read_saved_run(config);
  for (const auto& [name, value] : facts_of(config, info)) {
    const auto saved = checkpoint.facts.find(name);
    CHECK_ARG(saved != checkpoint.facts.end() && saved->second == value, "--resume ", config.resume,
              ": was made with ", name, " ",
              saved == checkpoint.facts.end() ? "unknown" : saved->second, ", this run has ",
              value);
  }
  return checkpoint;
}

}  // namespace headroom
