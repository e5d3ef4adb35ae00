// LeNet in its modern form: two 5x5 convolutions, two fully connected layers.
#include "nn/models/blocks.h"

namespace headroom {
namespace {

class LeNet final : public StagedModel {
 public:
  explicit LeNet(const ModelOptions& options) : StagedModel(options) {
    const int64_t side = options.image_size / 4;  // two 2x2 pools
    CHECK_ARG(side >= 1, "lenet: images must be at least 4x4, got ", options.image_size);
    int index = 0;
    int64_t in = options.channels;
    features_ = register_module("features", std::make_shared<Sequential>());
    for (const int64_t out : {32, 64}) {
      auto stage = std::make_shared<Sequential>();
      stage->append(std::to_string(index), make_conv(in, out, 5, 1, 2, true, options));
      stage->append(std::to_string(index + 1),
                    std::make_shared<Activation>(ActivationKind::relu, options.in_place));
      stage->append(std::to_string(index + 2), std::make_shared<MaxPool2d>(Pool2dOptions{}));
      index += 3;
      in = out;
      features_->append("", stage);
    }
    classifier_ = register_module("classifier", std::make_shared<Sequential>());
    classifier_->append(
        "0", std::make_shared<Linear>(Linear::Options{64 * side * side, 512}, options.tensor));
    classifier_->append("1", std::make_shared<Activation>(ActivationKind::relu, options.in_place));
    classifier_->append(
        "2", std::make_shared<Linear>(Linear::Options{512, options.classes}, options.tensor));
  }

 protected:
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    {
      const PathScope path("features");
      for (size_t i = 0; i < features_->size(); ++i) {
        y = run_stage(features_->at(i), y, checkpointed());
      }
    }
    return (*classifier_)(flatten(y, 1));
  }

 private:
  std::shared_ptr<Sequential> features_, classifier_;
};

}  // namespace

std::shared_ptr<Module> make_lenet(const ModelOptions& options) {
  return std::make_shared<LeNet>(options);
}

}  // namespace headroom
