// The table of flags.
#include "train/flags.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "nn/models/models.h"
#include "optim/schedule.h"
#include "train/flag_kinds.h"
#include "train/parse_value.h"

namespace headroom {
namespace {

using namespace flag_kinds;
using Json = nlohmann::ordered_json;

const NamedValues<Augment> kAugmentNames = {{"auto", Augment::automatic},
                                            {"none", Augment::none},
                                            {"crop", Augment::crop},
                                            {"flip", Augment::flip},
                                            {"crop-flip", Augment::crop_flip}};
const NamedValues<Tf32> kTf32Names = {{"off", Tf32::off}, {"conv", Tf32::conv}, {"all", Tf32::all}};
const NamedValues<MemoryFormat> kLayoutNames = {{"nhwc", MemoryFormat::channels_last},
                                                {"nchw", MemoryFormat::contiguous}};
const NamedValues<OnOutOfMemory> kOnOomNames = {{"stop", OnOutOfMemory::stop},
                                                {"halve-batch", OnOutOfMemory::halve_batch}};
const NamedValues<SavePolicy> kSavePolicyNames = {{"recompute", SavePolicy::recompute},
                                                  {"keep", SavePolicy::keep},
                                                  {"pack", SavePolicy::pack},
                                                  {"offload", SavePolicy::offload}};
const NamedValues<OnThreshold> kOnThresholdNames = {{"warn", OnThreshold::warn},
                                                    {"empty-cache", OnThreshold::empty_cache},
                                                    {"checkpoint", OnThreshold::checkpoint},
                                                    {"halve-batch", OnThreshold::halve_batch},
                                                    {"stop", OnThreshold::stop}};
const NamedValues<Classifier> kClassifierNames = {
    {name_of(Classifier::automatic), Classifier::automatic},
    {name_of(Classifier::pool), Classifier::pool},
    {name_of(Classifier::linear), Classifier::linear},
    {name_of(Classifier::conv), Classifier::conv}};
const NamedValues<DType> kHalfNames = {{"f16", DType::f16}, {"bf16", DType::bf16}};

Flag amp_flag() {
  Flag flag = value_flag("--amp", "f16|bf16",
                         "mixed precision: convolutions and products in half precision, weights "
                         "kept in f32; f16 with a loss scaler. --amp alone is --amp=f16",
                         "off");
  flag.kind = FlagKind::optional_value;
  flag.set = [](TrainConfig& c, const std::string& value) {
    c.amp = value.empty() ? DType::f16 : parse_name("--amp", value, kHalfNames);
  };
  flag.show = [](const TrainConfig& c) {
    return c.amp ? Json(name_in(kHalfNames, *c.amp)) : Json(nullptr);
  };
  return flag;
}

Flag classifier_flag() {
  Flag flag = choice("--classifier", &TrainConfig::classifier, kClassifierNames,
                     "of lenet and vgg16: pool is one layer on the mean of the last feature map, "
                     "linear is wide layers on all of it, conv is convolutions instead; auto is "
                     "linear for lenet, pool for all others");
  flag.show = [](const TrainConfig& c) { return Json(name_of(classifier_of(c))); };
  return flag;
}

// 0 stands for the optimizer's own default, so it cannot be given.
Flag lr_flag() {
  TrainConfig sgd, adam;
  sgd.optimizer = "sgd";
  adam.optimizer = "adam";
  Flag flag = real("--lr", &TrainConfig::lr, "the highest learning rate, above 0",
                   fmt::format("{} for sgd, {} for adam and adamw", lr_of(sgd), lr_of(adam)));
  flag.set = [](TrainConfig& c, const std::string& text) {
    c.lr = parse_real("--lr", text);
    CHECK_ARG(c.lr > 0, "--lr: must be above 0, got ", text);
  };
  return flag;
}

Flag seed_flag() {
  Flag flag = value_flag("--seed", "N", "of initial weights, order, augmentation and dropout",
                         std::to_string(TrainConfig{}.seed));
  flag.set = [](TrainConfig& c, const std::string& text) {
    c.seed = parse_unsigned("--seed", text);
  };
  flag.show = [](const TrainConfig& c) { return Json(c.seed); };
  return flag;
}

// A negative value stands for the schedule's own default, so it cannot be given.
Flag warmup_flag() {
  Flag flag = real("--warmup", &TrainConfig::warmup,
                   "linear rise of the rate at the start: below 1 a share of all steps, else steps",
                   "0.15 for cosine, 0.3 for one-cycle, else 0");
  flag.set = [](TrainConfig& c, const std::string& text) {
    c.warmup = parse_real("--warmup", text);
    CHECK_ARG(c.warmup >= 0, "--warmup: must be at least 0, got ", text);
  };
  flag.show = [](const TrainConfig& c) { return Json(warmup_of(c)); };
  return flag;
}

using C = TrainConfig;

FlagGroup model_and_data() {
  return {"Model and data",
          "what is trained, on what",
          {name("--model", &C::model, model_names(), "architecture"), classifier_flag(),
           text("--data", &C::data, "DATA",
                "a folder with MNIST (IDX, also .gz), CIFAR-10 (binary) or one folder of JPEG and "
                "PNG images per class; or random:CxHxW:CLASSES[:IMAGES] for benchmarks",
                "built-in digits, 1x28x28"),
           integer("--image-size", &C::image_size, 1, "resize images to N x N pixels",
                   "as in the data"),
           choice("--augment", &C::augment, kAugmentNames,
                  "pad by 4 and crop, mirror, or both; auto is crop-flip for color images, none "
                  "for gray ones"),
           toggle("--resident", &C::resident, true,
                  "keep the training images on the device, as bytes; they count in the peak"),
           integer("--loader-threads", &C::loader_threads, 0,
                   "threads that read images; never changes the result",
                   std::to_string(kDefaultLoaderThreads))}};
}

FlagGroup batches() {
  return {
      "Batches and length",
      "one optimizer step takes batch x accum images",
      {integer("--batch", &C::batch, 1, "images per forward and backward pass"),
       integer("--accum", &C::accum, 1, "passes per optimizer step"),
       integer("--eval-batch", &C::eval_batch, 1, "images per pass of evaluation", "as --batch"),
       integer("--epochs", &C::epochs, 1, "passes over the training set",
               std::to_string(kDefaultEpochs)),
       integer("--steps", &C::steps, 1, "optimizer steps, instead of --epochs", "as --epochs says"),
       toggle("--drop-last", &C::drop_last, true,
              "leave out an epoch's last step if it is short of images"),
       toggle("--no-eval", &C::evaluate, false, "do not measure test accuracy after epochs"),
       toggle("--eval-with-grad", &C::eval_with_grad, true,
              "record a tape in evaluation that nobody uses, to see what it costs")}};
}

FlagGroup optimization() {
  return {
      "Optimization",
      "how weights change",
      {name("--optimizer", &C::optimizer, optimizer_names(), "algorithm"), lr_flag(),
       real("--momentum", &C::momentum, "of sgd"),
       toggle("--nesterov", &C::nesterov, true, "Nesterov's momentum, the default of sgd"),
       hidden_in_reports(toggle("--no-nesterov", &C::nesterov, false, "momentum as Polyak has it")),
       real("--weight-decay", &C::weight_decay, "of weights; biases and norms have none"),
       name("--schedule", &C::schedule, schedule_names(), "learning rate over the run"),
       warmup_flag(),
       real("--clip-norm", &C::clip_norm, "limit on the norm of all gradients together",
            "no limit"),
       real("--label-smoothing", &C::label_smoothing,
            "share of the target spread over all classes")}};
}

FlagGroup precision() {
  return {"Precision and speed",
          "number formats and convolution plans",
          {amp_flag(), real("--init-scale", &C::init_scale, "first loss scale of --amp=f16"),
           choice("--tf32", &C::tf32, kTf32Names,
                  "use TF32 for f32 on the GPU: nowhere, in convolutions, in products as well"),
           choice("--layout", &C::layout, kLayoutNames, "memory order of images and activations"),
           toggle("--no-cudnn", &C::cudnn, false, "use Headroom's own convolution kernels"),
           toggle("--cudnn-benchmark", &C::cudnn_benchmark, true,
                  "time cuDNN's plans in the first steps and keep the fastest"),
           toggle("--deterministic", &C::deterministic, true, "the same bits twice on a GPU")}};
}

FlagGroup memory() {
  return {
      "Memory",
      "what lowers the peak, and limits",
      {toggle("--checkpoint", &C::checkpoint, true,
              "drop activations inside blocks and compute them again in backward"),
       choice("--saved", &C::save_policy, kSavePolicyNames,
              "what backward needs is computed again from what is kept anyway, or kept as it is; "
              "or, beside recompute, relu keeps one bit per element; or, beside pack, what is "
              "kept waits in host memory"),
       toggle("--step-in-backward", &C::step_in_backward, true,
              "update each parameter as soon as its gradient is complete, and free that; not "
              "with --amp=f16 or --clip-norm"),
       toggle("--no-inplace", &C::in_place, false,
              "separate out-of-place layers instead of fused and in-place ones; costs memory"),
       bytes("--workspace-limit", &C::workspace_limit_bytes,
             "the most scratch memory that one convolution may use on the GPU"),
       toggle("--expandable-segments", &C::expandable_segments, true,
              "map pages into one range of addresses instead of holding segments: less is reserved "
              "and not usable where sizes vary"),
       bytes("--memory-limit", &C::memory_limit_bytes,
             "the most device memory to reserve, as on a smaller card", "no limit"),
       choice("--on-oom", &C::on_oom, kOnOomNames,
              "out of memory: end with code 3, or take the step back and try it again with "
              "half of --batch and twice --accum, as often as needed"),
       real("--memory-threshold", &C::memory_threshold,
            "act after a step that leaves more than this share of the device in use (of "
            "--memory-limit, if there is one)",
            "none"),
       choice("--on-threshold", &C::on_threshold, kOnThresholdNames,
              "what to do then: say so; give cached memory back; from now on checkpoint, or "
              "halve --batch and double --accum; save and end with code 3")}};
}

FlagGroup run() {
  return {"Run",
          "where it runs, and what is repeatable",
          {name("--device", &C::device, device_names(),
                "auto takes the GPU if there is one; meta counts bytes and computes nothing"),
           toggle("--launch-blocking", &C::launch_blocking, true,
                  "wait for every kernel, so that one that fails on the GPU is named; slow"),
           integer("--threads", &C::threads, 0,
                   "of the CPU kernels, 0 for all cores; never changes the result"),
           seed_flag()}};
}

FlagGroup files() {
  return {
      "Files and output",
      "what is kept",
      {text("--save", &C::save, "FILE",
            "write weights (safetensors) and, beside them, the state of the run after every "
            "epoch, at the end and on Ctrl-C; each file is replaced whole or not at all",
            "nothing"),
       text("--resume", &C::resume, "FILE",
            "go on from a saved run; with the same flags, bit for bit on the CPU", "start afresh"),
       text("--log", &C::log, "FILE",
            "a JSON line per step and per epoch; reading each step's loss and learning rate waits "
            "for the device",
            "nothing"),
       toggle("--json", &C::json, true,
              "print one JSON object at the end on standard output, and nothing else there"),
       text("--memory-report", &C::memory_report, "FILE",
            "who holds the memory over one step and at its peak: a page (.html) or JSON",
            "nothing"),
       text("--conv-report", &C::conv_report, "FILE",
            "engine, workspace and time of each convolution in the first steps, as text or, in a "
            "file .json, as JSON; waits for the device after each of these steps",
            "nothing"),
       text("--snapshot", &C::snapshot, "FILE",
            "one step's memory, or that of one that ran out, for PyTorch's viewer", "nothing"),
       text("--trace", &C::trace, "FILE",
            "the host's first steps and the memory, for Perfetto or chrome://tracing", "nothing"),
       integer("--trace-steps", &C::trace_steps, 1, "steps in the trace")}};
}

}  // namespace

const char* name_of(OnThreshold action) { return name_in(kOnThresholdNames, action); }

const std::vector<FlagGroup>& flag_groups() {
  static const auto* groups = new std::vector<FlagGroup>{
      model_and_data(), batches(), optimization(), precision(), memory(), run(), files()};
  return *groups;
}

Json config_to_json(const TrainConfig& config) {
  Json out = Json::object();
  for (const FlagGroup& group : flag_groups()) {
    for (const Flag& flag : group.flags) {
      if (flag.show) out[flag.key] = flag.show(config);
    }
  }
  return out;
}

}  // namespace headroom
