// The training loop.
#include "train/trainer.h"

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/models/models.h"
#include "optim/step_in_backward.h"
#include "train/checkpoint/checkpoint.h"
#include "train/evaluation.h"
#include "train/input.h"
#include "train/memory_guard.h"
#include "train/meters.h"
#include "train/rollback.h"
#include "train/setup.h"

namespace headroom {

struct Trainer::Impl {
  TrainConfig config;
  RunInfo info;
  Device device;
  DataSplit data;
  std::shared_ptr<Module> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<GradScaler> scaler;
  std::optional<StepInBackward> stepping;  // during the last micro-batch of a window
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<DeviceInput> input;  // of the training set, from the next window on
  Rollback rollback;
  TrainerState state;
  LossMeter losses;
  MemoryMeter memory;
  StepClock clock;
  TrainObserver* observer = nullptr;
  RunResult result;
  int64_t saved_step = -1;   // of the last checkpoint written
  bool warned = false;       // of a device too full, which it still is
  bool refuses_one = false;  // the model, a pass of one image; known where batches may be halved

  explicit Impl(const TrainConfig& given) : config(given) {
    validate(config);
    config.nesterov = config.nesterov && config.optimizer == "sgd" && config.momentum > 0;
    std::string note;
    device = device_of(config, &note);
    info.warnings = warnings_of(config, device);
    if (!note.empty()) info.warnings.push_back(note);
    check_writable(config);
    data = open_data_set(config, info);
    apply_settings(config, device);
    build();
    plan_steps();
    if (!config.resume.empty()) {
      resume();
      // What reading took on the way is no part of the run.
      allocator_of(device).empty_cache();
    }
    info.first_step = state.step;
    check_passes(config, info, device, sampler->options().window, state.sampler.position);
    const bool may_halve = halves() || config.on_threshold == OnThreshold::halve_batch;
    refuses_one = may_halve && !why_not_one_image(config, info, device).empty();
    settle(config, info, device);
  }

  void build() {
    model = make_model(config.model, model_options_of(config, info, device));
    optimizer = make_optimizer(config, *model);
    if (config.amp) optimizer->keep_half_copies(*config.amp);
    if (config.amp == DType::f16) {
      GradScalerOptions scaling;
      scaling.init_scale = config.init_scale;
      scaler = std::make_unique<GradScaler>(scaling, device);
    }
    losses.open(device);
    if (halves()) {
      rollback = Rollback(*model, losses);
      // Made in the first step, between tensors of a pass, it would cut up their segments for good.
      optimizer->reserve_state();
    }
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
    optimizer->set_schedule(make_rates(config, info.total_steps));
  }

  void resume() {
    const Checkpoint checkpoint = load_run(config, info);
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

  void save() {
    state.generator_seed = default_generator().state().seed;
    state.generator_offset = default_generator().state().offset;
    state.loss_sum = losses.sum();
    state.loss_count = losses.count();
    if (scaler) {
      state.scale = scaler->current_scale();
      state.growth_tracker = scaler->growth_tracker();
    }
    save_checkpoint(config.save,
                    {model->state_dict(), optimizer->state_dict(), state, facts_of(config, info)});
    saved_step = state.step;
    observer->on_save(config.save, state.step);
  }

  Tensor forward(const Tensor& images) {
    const SavePolicyScope policy(config.save_policy);
    if (!config.amp) return (*model)(images);
    const Autocast region(*config.amp);
    return (*model)(images);
  }

  Tensor loss_of(const InputBatch& batch) {
    const PhaseScope phase(Phase::forward);
    CrossEntropyOptions options;
    options.reduction = Reduction::sum;
    options.label_smoothing = config.label_smoothing;
    return cross_entropy(forward(batch.images), batch.labels, options);
  }

  // One micro-batch: its part of the gradient of the mean over the whole window.
  void forward_backward(const InputBatch& batch) {
    if (config.step_in_backward && batch.plan.last_in_window) {
      stepping.emplace(*optimizer, [this](const Tensor& parameter) {
        observer->on_used_gradient({state.step + 1, model.get(), parameter});
      });
    }
    const Tensor loss = loss_of(batch);
    losses.add(loss.detach(), batch.count, batch.plan.in_window == 0);
    const double share = 1.0 / static_cast<double>(batch.plan.window_images);
    backward(loss, scaler ? scaler->seed(share) : scalar(share, {DType::f32, device}));
  }

  double loss_scale() const { return scaler ? scaler->current_scale() : 1; }

  void optimizer_step() {
    const PhaseScope phase(Phase::optimizer);
    if (!stepping) optimizer->step({scaler.get(), config.clip_norm});
    if (stepping) stepping->finish();
    stepping.reset();
    optimizer->zero_grad();
  }

  bool halves() const { return config.on_oom == OnOutOfMemory::halve_batch; }

  // Runs `attempt`; if memory runs out and `batch` can be halved, halves it and says so. True if
  // the attempt went through.
  template <class Attempt>
  bool fits(int64_t TrainConfig::*batch, bool in_evaluation, const Attempt& attempt) {
    OutOfMemoryInfo what;
    try {
      attempt();
      return true;
    } catch (const OutOfMemory& error) {
      if (!halves() || !can_halve(batch, in_evaluation)) throw;
      what.message = error.what();
      what.facts = error.facts();
    }
    memory.discard(device);
    what.in_evaluation = in_evaluation;
    what.step = in_evaluation ? state.step : state.step + 1;
    what.batch_before = config.*batch;
    what.accum_before = in_evaluation ? 1 : config.accum;
    halve(batch, in_evaluation);
    what.batch = config.*batch;
    what.accum = in_evaluation ? 1 : config.accum;
    ++result.out_of_memory_retries;
    observer->on_out_of_memory(what);
    return false;
  }

  bool can_halve(int64_t TrainConfig::*batch, bool in_evaluation) const {
    if (config.*batch == 1 || in_evaluation || !refuses_one) return config.*batch > 1;
    return !comes_to_one_image(config, (config.*batch + 1) / 2, sampler->options().window,
                               state.sampler.position, info.train_images);
  }

  // Fewer images at a time; a window of training keeps its images.
  void halve(int64_t TrainConfig::*batch, bool in_evaluation) {
    config.*batch = (config.*batch + 1) / 2;
    if (!in_evaluation) config.accum = (sampler->options().window - 1) / config.batch + 1;
  }

  // After a step: acts if the device is too full. True if the run is to end.
  bool guard_memory() {
    if (config.memory_threshold == 0) return false;
    const MemoryUse use = memory_use(device);
    if (use.share() <= config.memory_threshold) return warned = false;
    ThresholdInfo what{state.step, use.used_bytes, use.capacity_bytes};
    switch (config.on_threshold) {
      case OnThreshold::checkpoint:
        if (config.checkpoint) break;
        set_checkpointed(*model, config.checkpoint = true);
        what.action = OnThreshold::checkpoint;
        break;
      case OnThreshold::halve_batch:
        if (!can_halve(&TrainConfig::batch, false)) break;
        halve(&TrainConfig::batch, false);
        input.reset();
        what.action = OnThreshold::halve_batch;
        break;
      default:
        what.action = config.on_threshold;
    }
    const bool warns = what.action == OnThreshold::warn;
    if (!warns && what.action != OnThreshold::stop) allocator_of(device).empty_cache();
    what.used_after_bytes = memory_use(device).used_bytes;
    what.batch = config.batch;
    what.accum = config.accum;
    // A warning is given once while it lasts.
    if (!warns || !warned) observer->on_threshold(what);
    warned = warns;
    return what.action == OnThreshold::stop;
  }

  // Not evaluated if `stop` said so meanwhile.
  EpochInfo evaluate_epoch(const std::function<bool()>& stop) {
    observer->on_evaluation_begin();
    memory.begin(device, MemoryMeter::evaluation);
    std::optional<Evaluation> measured;
    const auto attempt = [&] {
      measured = evaluate(
          *model, *data.test, {input_options_of(config, device, false), config.eval_with_grad},
          [this](const Tensor& x) { return forward(x); }, stop);
    };
    while (!fits(&TrainConfig::eval_batch, true, attempt)) {
    }
    EpochInfo out;
    out.evaluated = measured.has_value();
    const Evaluation values = measured.value_or(Evaluation{});
    out.test_loss = values.loss;
    out.test_accuracy = values.accuracy;
    return out;
  }

  // Closes an epoch, or the run inside one: its loss, its accuracy, its checkpoint.
  void end_epoch(const MicroBatch& plan, const std::function<bool()>& stop) {
    clock.pause(device);
    EpochInfo epoch;
    const double train_loss = losses.mean();
    // A run that ended inside an epoch may be resumed with more steps, and go on counting.
    if (plan.last_in_epoch) losses.restore(0, 0);
    if (config.evaluate && data.test) {
      epoch = evaluate_epoch(stop);
      result.interrupted = !epoch.evaluated;
    }
    epoch.epoch = plan.epoch + 1;
    epoch.train_loss = result.train_loss = train_loss;
    epoch.seconds = clock.seconds();
    epoch.loss_scale = scaler ? loss_scale() : 0;
    if (epoch.evaluated) {
      result.test_accuracy = epoch.test_accuracy;
      result.test_loss = epoch.test_loss;
    }
    observer->on_epoch(epoch);
    if (saves()) save();
    memory.begin(device, MemoryMeter::training);
    clock.start(device);
  }

  // The input from the window on that comes next.
  void open_input() {
    SamplerOptions order = sampler->options();
    order.batch = config.batch;
    Sampler from_here(data.train->size(), order);
    from_here.restore(state.sampler);
    input = std::make_unique<DeviceInput>(
        *data.train, batch_source(std::move(from_here), info.total_steps - state.step),
        input_options_of(config, device, true));
  }

  // A window and its optimizer step. What it leaves when it throws OutOfMemory is for rollback.
  MicroBatch run_window() {
    rollback.mark();
    observer->on_step_begin(state.step + 1);
    const RangeScope range(RangeKind::step, "step", state.step + 1);
    if (!input) open_input();
    for (;;) {
      const std::optional<InputBatch> batch = input->next();
      CHECK(batch.has_value(), "the input ended before the run");
      forward_backward(*batch);
      if (!batch->plan.last_in_window) continue;
      observer->on_gradients({state.step + 1, model.get(), [this] { return loss_scale(); }});
      optimizer_step();
      return batch->plan;
    }
  }

  // A window, with smaller micro-batches if it does not fit and the configuration says so.
  MicroBatch step_that_fits() {
    MicroBatch last;
    while (!fits(&TrainConfig::batch, false, [&] { last = run_window(); })) {
      input.reset();
      rollback.restore();
    }
    return last;
  }

  RunResult run(TrainObserver& to_tell, const std::function<bool()>& stop) {
    observer = &to_tell;
    observer->on_start(info);
    memory.begin(device, MemoryMeter::first_step);
    const int64_t skipped_before = state.step - optimizer->applied_steps();
    int64_t images_seen = 0;
    clock.start(device);
    while (!result.interrupted && state.step < info.total_steps) {
      const MicroBatch plan = step_that_fits();
      const int64_t images = plan.window_images;
      ++state.step;
      state.sampler = plan.state_after_window;
      images_seen += images;
      clock.step(device, images);
      memory.end_of_step(device);
      observer->on_step({state.step, plan.epoch + 1, images, images_seen, clock.seconds(),
                         memory.peak_of_steps(device), [this] { return losses.last_window_mean(); },
                         [this] { return optimizer->last_lr(); }});
      const bool too_full = guard_memory();
      const bool last = state.step == info.total_steps;
      if (plan.last_in_epoch || last) end_epoch(plan, stop);
      if (!last && (too_full || stop())) {
        result.interrupted = true;
        result.over_threshold = too_full;
      }
    }
    clock.pause(device);
    input.reset();
    memory.finish(device);
    // Of an epoch that was cut short.
    if (losses.count() > 0) result.train_loss = losses.mean();
    if (result.interrupted && saves() && saved_step != state.step) save();
    result.steps = state.step;
    // On meta nothing is applied, and so nothing counts as skipped.
    if (!device.is_meta()) {
      result.skipped_steps = state.step - optimizer->applied_steps() - skipped_before;
    }
    result.step_ms = clock.step_ms();
    result.images_per_s = clock.images_per_s();
    result.first_step = memory.peak(MemoryMeter::first_step);
    result.evaluation = memory.peak(MemoryMeter::evaluation);
    result.peak = memory.peak_of_run();
    result.workspace_fallbacks = conv2d_workspace_fallbacks();
    if (scaler) result.loss_scale = loss_scale();
    return result;
  }
};

Trainer::Trainer(const TrainConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Trainer::~Trainer() = default;
const RunInfo& Trainer::info() const { return impl_->info; }
const TrainConfig& Trainer::config() const { return impl_->config; }
Device Trainer::device() const { return impl_->device; }
Module& Trainer::model() { return *impl_->model; }
int64_t Trainer::steps_done() const { return impl_->state.step; }
RunResult Trainer::run(TrainObserver& observer, const std::function<bool()>& stop) {
  return impl_->run(
      observer, stop ? stop : [] { return false; });
}

}  // namespace headroom
