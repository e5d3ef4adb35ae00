// Stages one after another, and the three forms of the classifier.
#include "nn/models/feature_model.h"

#include <algorithm>
#include <string>
#include <utility>

namespace headroom {
namespace {

// Appends `layer`, behind a ReLU if it is not the first.
void append_layer(Sequential& to, std::shared_ptr<Module> layer, const ModelOptions& options) {
  if (to.size() > 0) {
    to.append(std::make_shared<Activation>(ActivationKind::relu, options.in_place));
  }
  to.append(std::move(layer));
}

std::shared_ptr<Module> make_linear(int64_t in, int64_t out, const ModelOptions& options) {
  return std::make_shared<Linear>(Linear::Options{in, out}, options.tensor);
}

std::shared_ptr<Module> make_linear_chain(int64_t in, const std::vector<int64_t>& widths,
                                          const ModelOptions& options) {
  auto chain = std::make_shared<Sequential>();
  for (const int64_t width : widths) {
    append_layer(*chain, make_linear(in, width, options), options);
    in = width;
  }
  append_layer(*chain, make_linear(in, options.classes, options), options);
  return chain;
}

std::shared_ptr<Module> make_conv_chain(int64_t in, int64_t side, const ModelOptions& options) {
  constexpr int64_t kMostChannels = 512;
  const int64_t width = std::min(2 * in, std::max(in, kMostChannels));
  // Most taps of a 3x3 kernel would lie outside of a smaller map.
  const int64_t kernel = side < 3 ? 1 : 3;
  auto chain = std::make_shared<Sequential>();
  append_layer(*chain, make_conv(in, width, kernel, 1, kernel / 2, true, options), options);
  append_layer(*chain, make_conv(width, options.classes, 1, 1, 0, true, options), options);
  return chain;
}

Tensor averaged(const Tensor& map) {
  return map.size(2) > 1 || map.size(3) > 1 ? global_avg_pool2d(map) : map;
}

}  // namespace

FeatureModel::FeatureModel(const ModelOptions& options)
    : StagedModel(options),
      features_(register_module("features", std::make_shared<Sequential>())) {}

Sequential& FeatureModel::add_stage() {
  auto stage = std::make_shared<Sequential>();
  features_->append("", stage);
  return *stage;
}

void FeatureModel::add_classifier(Classifier kind, int64_t channels, int64_t side,
                                  const std::vector<int64_t>& widths, const ModelOptions& options) {
  kind_ = kind;
  std::shared_ptr<Module> made;
  switch (kind) {
    case Classifier::linear:
      made = make_linear_chain(channels * side * side, widths, options);
      break;
    case Classifier::conv:
      made = make_conv_chain(channels, side, options);
      break;
    default:
      made = make_linear(channels, options.classes, options);
  }
  classifier_ = register_module("classifier", std::move(made));
}

Tensor FeatureModel::forward(const Tensor& x) {
  Tensor y = x;
  {
    const PathScope path("features");
    for (size_t i = 0; i < features_->size(); ++i) {
      y = run_stage(features_->at(i), y, checkpointed());
    }
  }
  if (kind_ == Classifier::conv) return flatten(averaged((*classifier_)(y)), 1);
  if (kind_ == Classifier::pool) y = averaged(y);
  return (*classifier_)(flatten(y, 1));
}

}  // namespace headroom
