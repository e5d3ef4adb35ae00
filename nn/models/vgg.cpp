// VGG-16 with batch norm.
#include <vector>

#include "nn/models/feature_model.h"

namespace headroom {
namespace {

class Vgg16 final : public FeatureModel {
 public:
  explicit Vgg16(const ModelOptions& options) : FeatureModel(options) {
    constexpr int64_t kShrinking = 32;  // five 2x2 pools
    CHECK_ARG(options.image_size >= kShrinking, "vgg16: images must be at least 32x32, got ",
              options.image_size);
    const std::vector<std::vector<int64_t>> stages = {
        {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
    int index = 0;
    int64_t in = options.channels;
    for (const auto& widths : stages) {
      Sequential& stage = add_stage();
      for (const int64_t out : widths) {
        append_conv_norm_relu(stage, index, make_conv(in, out, 3, 1, 1, false, options), out,
                              options);
        in = out;
      }
      stage.append(std::to_string(index++), std::make_shared<MaxPool2d>(Pool2dOptions{}));
    }
    add_classifier(options.classifier, in, options.image_size / kShrinking, {4096, 4096}, options);
  }
};

}  // namespace

std::shared_ptr<Module> make_vgg16(const ModelOptions& options) {
  return std::make_shared<Vgg16>(options);
}

}  // namespace headroom
