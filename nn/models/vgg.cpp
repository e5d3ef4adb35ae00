// VGG-16 with batch norm.
#include <vector>

#include "nn/models/blocks.h"

namespace headroom {
namespace {

class Vgg16 final : public StagedModel {
 public:
  explicit Vgg16(const ModelOptions& options) : StagedModel(options) {
    CHECK_ARG(options.image_size >= 32, "vgg16: images must be at least 32x32, got ",
              options.image_size);
    const std::vector<std::vector<int64_t>> stages = {
        {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
    features_ = register_module("features", std::make_shared<Sequential>());
    int index = 0;
    int64_t in = options.channels;
    for (const auto& widths : stages) {
      auto stage = std::make_shared<Sequential>();
      for (const int64_t out : widths) {
        append_conv_norm_relu(*stage, index, make_conv(in, out, 3, 1, 1, false, options), out,
                              options);
        in = out;
      }
      stage->append(std::to_string(index++), std::make_shared<MaxPool2d>(Pool2dOptions{}));
      features_->append("", stage);
    }
    classifier_ = register_module(
        "classifier",
        std::make_shared<Linear>(Linear::Options{in, options.classes}, options.tensor));
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
    if (y.size(2) > 1 || y.size(3) > 1) y = global_avg_pool2d(y);
    return (*classifier_)(flatten(y, 1));
  }

 private:
  std::shared_ptr<Sequential> features_;
  std::shared_ptr<Linear> classifier_;
};

}  // namespace

std::shared_ptr<Module> make_vgg16(const ModelOptions& options) {
  return std::make_shared<Vgg16>(options);
}

}  // namespace headroom
