// The training loop.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/base/parallel.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/models/models.h"
#include "optim/schedule.h"
#include "train/checkpoint/checkpoint.h"
#include "train/input.h"
#include "train/meters.h"

namespace headroom {
namespace {

std::unique_ptr<Optimizer> make_optimizer(const TrainConfig& c, const Module& model) {
  auto groups = decay_groups(model.parameters(), c.weight_decay);
  if (c.optimizer == "sgd") {
    SgdOptions options;
    options.lr = lr_of(c);
    options.momentum = c.momentum;
    options.nesterov = c.nesterov && c.momentum > 0;
    return std::make_unique<Sgd>(std::move(groups), options);
  }
  AdamOptions options;
  options.lr = lr_of(c);
  options.decoupled = c.optimizer == "adamw";
  return std::make_unique<Adam>(std::move(groups), options);
}

// "digits" of "digits train".
std::string name_of_both(const std::string& training_set) {
  const std::string suffix = " train";
  const size_t at = training_set.rfind(suffix);
  const bool ends_with_it = at != std::string::npos && at + suffix.size() == training_set.size();
  return ends_with_it ? training_set.substr(0, at) : training_set;
}

void apply_settings(const TrainConfig& c, Device device) {
  Settings& s = settings();
  s.cudnn = c.cudnn;
  s.cudnn_benchmark = c.cudnn_benchmark;
  s.deterministic = c.deterministic;
  s.tf32 = c.tf32;
  s.workspace_limit_bytes = c.workspace_limit_bytes;
  set_num_threads(static_cast<int>(c.threads));
  allocator_of(device).set_memory_limit(c.memory_limit_bytes);
  manual_seed(c.seed);
}

}  // namespace

struct Trainer::Impl {
  TrainConfig config;
  RunInfo info;
  Device device;
  DataSplit data;
  std::shared_ptr<Module> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<GradScaler> scaler;
  std::unique_ptr<Sampler> sampler;
  TrainerState state;
  LossMeter losses;
  MemoryMeter memory;
  StepClock clock;
  int64_t saved_step = -1;  // of the last checkpoint written

  explicit Impl(const TrainConfig& given) : config(given) {
    validate(config);
    std::string note;
    device = device_of(config, &note);
    if (!note.empty()) info.warnings.push_back(note);
    if (!config.save.empty()) check_writable(config.save);
    if (!config.save.empty() && device.is_meta()) {
      info.warnings.push_back("--save: a meta device holds no weights, so nothing is written");
    }
    open_data_set();
    apply_settings(config, device);
    build();
    plan_steps();
    if (!config.resume.empty()) {
      resume();
      // What reading took on the way is no part of the run.
      allocator_of(device).empty_cache();
    }
    info.first_step = state.step;
    settle();
  }

  // Makes the configuration say what runs.
  void settle() {
    config.device = name_of(device);
    config.image_size = info.image_shape.height;
    config.eval_batch = eval_batch_of(config);
    config.lr = lr_of(config);
    config.threads = num_threads();
  }

  void open_data_set() {
    DataOptions options;
    options.image_size = config.image_size;
    data = open_data(config.data, options);
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
  }

  void build() {
    ModelOptions options;
    options.classes = info.classes;
    options.channels = info.image_shape.channels;
    options.image_size = info.image_shape.height;
    options.in_place = config.in_place;
    options.checkpoint = config.checkpoint;
    options.tensor = {DType::f32, device, config.layout};
    model = make_model(config.model, options);
    optimizer = make_optimizer(config, *model);
    if (config.amp) optimizer->keep_half_copies(*config.amp);
    if (config.amp == DType::f16) {
      GradScalerOptions scaling;
      scaling.init_scale = config.init_scale;
      scaler = std::make_unique<GradScaler>(scaling, device);
    }
    losses.open(device);
    info.parameter_count = model->parameter_count();
    info.device_name = name_of(device);
    info.device_description = runtime_of(device).description();
  }

  void plan_steps() {
    SamplerOptions order;
    order.batch = config.batch;
    order.accum = config.accum;
    order.drop_last = config.drop_last;
    order.seed = config.seed;
    sampler = std::make_unique<Sampler>(data.train->size(), order);
    info.steps_per_epoch = sampler->windows_per_epoch();
    if (config.steps > 0) {
      info.total_steps = config.steps;
      info.epochs = (config.steps + info.steps_per_epoch - 1) / info.steps_per_epoch;
    } else {
      if (config.epochs == 0) config.epochs = kDefaultEpochs;
      info.epochs = config.epochs;
      info.total_steps = config.epochs * info.steps_per_epoch;
      CHECK_ARG(info.total_steps <= kMaxSteps, "--epochs ", config.epochs, ": at ",
                info.steps_per_epoch, " steps each that is more than the ", kMaxSteps,
                " steps of the longest run");
    }
    ScheduleOptions schedule;
    schedule.kind = parse_schedule(config.schedule);
    schedule.lr = lr_of(config);
    schedule.total_steps = info.total_steps;
    const double share = config.warmup * static_cast<double>(info.total_steps);
    schedule.warmup_steps = config.warmup < 1
                                ? std::max<int64_t>(config.warmup > 0, static_cast<int64_t>(share))
                                : static_cast<int64_t>(config.warmup);
    schedule.step_every = std::max<int64_t>(1, info.total_steps / 3);
    optimizer->set_schedule(make_schedule(schedule));
  }

  std::map<std::string, std::string> facts() const {
    return {{"model", config.model},
            {"classes", std::to_string(info.classes)},
            {"image", detail::concat(info.image_shape.channels, "x", info.image_shape.height, "x",
                                     info.image_shape.width)},
            {"train_images", std::to_string(info.train_images)},
            {"optimizer", config.optimizer},
            {"amp", config.amp ? name_of(*config.amp) : "off"},
            {"seed", std::to_string(config.seed)}};
  }

  void resume() {
    const Checkpoint checkpoint = load_checkpoint(config.resume);
    for (const auto& [name, value] : facts()) {
      const auto saved = checkpoint.facts.find(name);
      CHECK_ARG(saved != checkpoint.facts.end() && saved->second == value, "--resume ",
                config.resume, ": was made with ", name, " ",
                saved == checkpoint.facts.end() ? "unknown" : saved->second, ", this run has ",
                value);
    }
    model->load_state_dict(checkpoint.model);
    optimizer->load_state_dict(checkpoint.optimizer);
    if (config.amp) optimizer->keep_half_copies(*config.amp);
    state = checkpoint.trainer;
    CHECK_ARG(state.step < info.total_steps, "--resume ", config.resume, ": stands at step ",
              state.step, ", and this run ends at step ", info.total_steps,
              "; give more --epochs or --steps");
    sampler->restore(state.sampler);
    default_generator().set_state({state.generator_seed, state.generator_offset});
    if (scaler) scaler->set_state(state.scale, state.growth_tracker);
    losses.restore(state.loss_sum, state.loss_count);
  }

  // Meta would write zeros over a checkpoint that someone may need.
  bool saves() const { return !config.save.empty() && !device.is_meta(); }

  void save(TrainObserver& observer) {
    state.generator_seed = default_generator().state().seed;
    state.generator_offset = default_generator().state().offset;
    state.loss_sum = losses.sum();
    state.loss_count = losses.count();
    if (scaler) {
      state.scale = scaler->current_scale();
      state.growth_tracker = scaler->growth_tracker();
    }
    save_checkpoint(config.save, {model->state_dict(), optimizer->state_dict(), state, facts()});
    saved_step = state.step;
    observer.on_save(config.save, state.step);
  }

  InputOptions input_options(bool training) const {
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

  Tensor forward(const Tensor& images) {
    if (!config.amp) return (*model)(images);
    const Autocast region(*config.amp);
    return (*model)(images);
  }

  // One micro-batch: its part of the gradient of the mean over the whole window.
  void forward_backward(const InputBatch& batch) {
    const PhaseScope phase(Phase::forward);
    CrossEntropyOptions options;
    options.reduction = Reduction::sum;
    options.label_smoothing = config.label_smoothing;
    const Tensor loss = cross_entropy(forward(batch.images), batch.labels, options);
    losses.add(loss.detach(), batch.count, batch.plan.in_window == 0);
    const double share = 1.0 / static_cast<double>(batch.plan.window_images);
    backward(loss, scaler ? scaler->seed(share) : scalar(share, {DType::f32, device}));
  }

  void optimizer_step() {
    optimizer->step({scaler.get(), config.clip_norm});
    optimizer->zero_grad();
  }

  // Not evaluated if `stop` said so meanwhile.
  EpochInfo evaluate(TrainObserver& observer, const std::function<bool()>& stop) {
    EpochInfo out;
    observer.on_evaluation_begin();
    memory.begin(device, MemoryMeter::evaluation);
    const EvalScope modes(*model);
    const NoGrad no_grad;
    const PhaseScope phase(Phase::evaluation);
    SamplerOptions order;
    order.batch = eval_batch_of(config);
    order.shuffle = false;
    Sampler in_order(data.test->size(), order);
    const int64_t batches = in_order.batches_per_epoch();
    DeviceInput input(*data.test, batch_source(std::move(in_order), batches), input_options(false));
    LossMeter meter;
    meter.open(device);
    Tensor correct = zeros({}, {DType::i64, device});
    CrossEntropyOptions options;
    options.reduction = Reduction::sum;
    while (auto batch = input.next()) {
      if (stop()) return out;
      const Tensor logits = forward(batch->images);
      meter.add(cross_entropy(logits, batch->labels, options), batch->count, true);
      count_correct(logits, batch->labels, correct);
    }
    out.test_loss = meter.mean();
    out.test_accuracy = correct.item() / static_cast<double>(data.test->size());
    out.evaluated = true;
    return out;
  }

  // Closes an epoch, or the run inside one: its loss, its accuracy, its checkpoint.
  void end_epoch(const MicroBatch& plan, TrainObserver& observer, const std::function<bool()>& stop,
                 RunResult& result) {
    clock.pause(device);
    EpochInfo epoch;
    const double train_loss = losses.mean();
    // A run that ended inside an epoch may be resumed with more steps, and go on counting.
    if (plan.last_in_epoch) losses.restore(0, 0);
    if (config.evaluate && data.test) {
      epoch = evaluate(observer, stop);
      result.interrupted = !epoch.evaluated;
    }
    epoch.epoch = plan.epoch + 1;
    epoch.train_loss = result.train_loss = train_loss;
    epoch.seconds = clock.seconds();
    epoch.loss_scale = scaler ? scaler->current_scale() : 0;
    if (epoch.evaluated) {
      result.test_accuracy = epoch.test_accuracy;
      result.test_loss = epoch.test_loss;
    }
    observer.on_epoch(epoch);
    if (saves()) save(observer);
    memory.begin(device, MemoryMeter::training);
    clock.start(device);
  }

  RunResult run(TrainObserver& observer, const std::function<bool()>& stop) {
    RunResult result;
    observer.on_start(info);
    memory.begin(device, MemoryMeter::first_step);
    const int64_t skipped_before = state.step - optimizer->applied_steps();
    DeviceInput input(*data.train, batch_source(*sampler, info.total_steps - state.step),
                      input_options(true));
    int64_t images = 0, images_seen = 0;
    clock.start(device);
    while (!result.interrupted) {
      auto batch = input.next();
      if (!batch) break;
      forward_backward(*batch);
      images += batch->count;
      if (!batch->plan.last_in_window) continue;
      optimizer_step();
      const MicroBatch plan = batch->plan;
      batch.reset();
      ++state.step;
      state.sampler = plan.state_after_window;
      images_seen += images;
      clock.step(device, images);
      memory.end_of_step(device);
      observer.on_step({state.step, plan.epoch + 1, images, images_seen, clock.seconds(),
                        memory.peak_of_steps(device),
                        [this] { return losses.last_window_mean(); }});
      images = 0;
      const bool last = state.step == info.total_steps;
      if (plan.last_in_epoch || last) end_epoch(plan, observer, stop, result);
      if (!last && stop()) result.interrupted = true;
    }
    clock.pause(device);
    memory.finish(device);
    // Of an epoch that was cut short.
    if (losses.count() > 0) result.train_loss = losses.mean();
    if (result.interrupted && saves() && saved_step != state.step) save(observer);
    result.steps = state.step;
    // On meta nothing is applied, and so nothing counts as skipped.
    if (!device.is_meta()) {
      result.skipped_steps = state.step - optimizer->applied_steps() - skipped_before;
    }
    result.step_ms = clock.step_ms();
    result.images_per_s = clock.images_per_s();
    result.first_step = memory.peak(MemoryMeter::first_step);
    result.evaluation = memory.peak(MemoryMeter::evaluation);
    result.peak =
        memory.steps_measured() > 1 ? memory.peak(MemoryMeter::training) : result.first_step;
    result.workspace_fallbacks = conv2d_workspace_fallbacks();
    result.loss_scale = scaler ? scaler->current_scale() : 0;
    return result;
  }
};

Trainer::Trainer(const TrainConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Trainer::~Trainer() = default;
const RunInfo& Trainer::info() const { return impl_->info; }
const TrainConfig& Trainer::config() const { return impl_->config; }
Device Trainer::device() const { return impl_->device; }
Module& Trainer::model() { return *impl_->model; }
RunResult Trainer::run(TrainObserver& observer, const std::function<bool()>& stop) {
  return impl_->run(
      observer, stop ? stop : [] { return false; });
}

}  // namespace headroom
