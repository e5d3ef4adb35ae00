// The table of models and their shared parts.
#include "nn/models/models.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/autograd/checkpoint.h"
#include "nn/models/blocks.h"

namespace headroom {

std::shared_ptr<Conv2d> make_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                  int64_t padding, bool bias, const ModelOptions& options) {
  Conv2d::Options conv;
  conv.in = in;
  conv.out = out;
  conv.kernel = {kernel, kernel};
  conv.conv.stride = {stride, stride};
  conv.conv.padding = {padding, padding};
  conv.bias = bias;
  return std::make_shared<Conv2d>(conv, options.tensor);
}

std::shared_ptr<BatchNorm2d> make_norm(int64_t channels, bool relu, const ModelOptions& options) {
  BatchNorm2d::Options norm;
  norm.channels = channels;
  norm.relu = relu && options.in_place;
  return std::make_shared<BatchNorm2d>(norm, options.tensor);
}

void append_conv_norm_relu(Sequential& to, int& index, std::shared_ptr<Conv2d> conv,
                           int64_t channels, const ModelOptions& options) {
  to.append(std::to_string(index), std::move(conv));
  to.append(std::to_string(index + 1), make_norm(channels, true, options));
  if (!options.in_place) {
    to.append(std::to_string(index + 2), std::make_shared<Activation>(ActivationKind::relu));
  }
  index += 3;
}

Tensor run_stage(Module& stage, const Tensor& x, bool under_checkpoint) {
  if (!under_checkpoint) return stage(x);
  return checkpoint([&stage](const Tensor& input) { return stage(input); }, x);
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = {"lenet", "vgg16", "resnet18", "resnet50"};
  return names;
}

const char* name_of(Classifier classifier) {
  constexpr std::array<const char*, 4> kNames = {"auto", "pool", "linear", "conv"};
  return kNames[static_cast<size_t>(classifier)];
}

std::vector<Classifier> classifiers_of(const std::string& name) {
  if (name == "lenet") return {Classifier::linear, Classifier::pool, Classifier::conv};
  if (name == "vgg16") return {Classifier::pool, Classifier::linear, Classifier::conv};
  if (name == "resnet18" || name == "resnet50") return {Classifier::pool};
  return {};
}

std::shared_ptr<Module> make_model(const std::string& name, const ModelOptions& given) {
  ModelOptions options = given;
  const std::vector<Classifier> classifiers = classifiers_of(name);
  CHECK_ARG(!classifiers.empty(), "model: allowed are lenet, vgg16, resnet18 and resnet50, got '",
            name, "'");
  if (options.classifier == Classifier::automatic) options.classifier = classifiers.front();
  CHECK_ARG(std::count(classifiers.begin(), classifiers.end(), options.classifier) > 0, name,
            ": has no classifier ", name_of(options.classifier));
  CHECK_ARG(options.classes >= 1, "model: needs at least one class, got ", options.classes);
  CHECK_ARG(options.channels >= 1, "model: needs at least one image channel, got ",
            options.channels);
  CHECK_ARG(options.image_size >= 1, "model: image size must be at least 1, got ",
            options.image_size);
  const auto make = [&] {
    if (name == "lenet") return make_lenet(options);
    if (name == "vgg16") return make_vgg16(options);
    if (name == "resnet18") return make_resnet18(options);
    return make_resnet50(options);
  };
  // Layers have no path yet: if memory runs out, this is whose it was to be.
  std::optional<PathScope> path(name);
  std::shared_ptr<Module> model = make();
  path.reset();
  model->name_memory();
  return model;
}

void set_checkpointed(Module& model, bool on) {
  auto* staged = dynamic_cast<StagedModel*>(&model);
  CHECK_ARG(staged, "set_checkpointed: the module is none of the standard models");
  staged->set_checkpointed(on);
}

}  // namespace headroom
