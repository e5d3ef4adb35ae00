// LeNet in its modern form: two 5x5 convolutions, two fully connected layers.
#include "nn/models/feature_model.h"

namespace headroom {
namespace {

class LeNet final : public FeatureModel {
 public:
  explicit LeNet(const ModelOptions& options) : FeatureModel(options) {
    const int64_t side = options.image_size / 4;  // two 2x2 pools
    CHECK_ARG(side >= 1, "lenet: images must be at least 4x4, got ", options.image_size);
    int index = 0;
    int64_t in = options.channels;
    for (const int64_t out : {32, 64}) {
      Sequential& stage = add_stage();
      stage.append(std::to_string(index), make_conv(in, out, 5, 1, 2, true, options));
      stage.append(std::to_string(index + 1),
                   std::make_shared<Activation>(ActivationKind::relu, options.in_place));
      stage.append(std::to_string(index + 2), std::make_shared<MaxPool2d>(Pool2dOptions{}));
      index += 3;
      in = out;
    }
    add_classifier(options.classifier, in, side, {512}, options);
  }
};

}  // namespace

std::shared_ptr<Module> make_lenet(const ModelOptions& options) {
  return std::make_shared<LeNet>(options);
}

}  // namespace headroom
