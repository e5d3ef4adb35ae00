// ResNets with basic and bottleneck blocks.
#include <vector>

#include "nn/models/blocks.h"

namespace headroom {
namespace {

// y = relu(norm(conv(... relu(norm(conv(x))))) + identity): two 3x3 convolutions, or 1x1, 3x3, 1x1.
class ResidualBlock final : public Module {
 public:
  ResidualBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck,
                const ModelOptions& options)
      : in_place_(options.in_place) {
    struct Spec {
      int64_t in, out, kernel, stride;
    };
    const int64_t out = width * (bottleneck ? 4 : 1);
    const std::vector<Spec> specs =
        bottleneck
            ? std::vector<Spec>{{in, width, 1, 1}, {width, width, 3, stride}, {width, out, 1, 1}}
            : std::vector<Spec>{{in, width, 3, stride}, {width, width, 3, 1}};
    for (size_t i = 0; i < specs.size(); ++i) {
      const Spec& s = specs[i];
      convs_.push_back(register_module(
          "convs." + std::to_string(i),
          make_conv(s.in, s.out, s.kernel, s.stride, s.kernel / 2, false, options)));
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      norms_.push_back(
          register_module("bns." + std::to_string(i), make_norm(specs[i].out, true, options)));
    }
    if (stride != 1 || in != out) {
      down_ = register_module("down", std::make_shared<Sequential>());
      down_->append(make_conv(in, out, 1, stride, 0, false, options));
      down_->append(make_norm(out, false, options));
    }
  }

 protected:
  Tensor forward(const Tensor& x) override {
    const Tensor identity = down_ ? (*down_)(x) : x;
    Tensor y = x;
    const size_t last = convs_.size() - 1;
    for (size_t i = 0; i < last; ++i) {
      y = (*norms_[i])((*convs_[i])(y));
      if (!in_place_) y = relu(y);
    }
    y = (*convs_[last])(y);
    if (in_place_) return norms_[last]->with_residual(y, identity);
    return relu(add((*norms_[last])(y), identity));
  }

 private:
  bool in_place_;
  std::vector<std::shared_ptr<Conv2d>> convs_;
  std::vector<std::shared_ptr<BatchNorm2d>> norms_;
  std::shared_ptr<Sequential> down_;
};

class ResNet final : public StagedModel {
 public:
  ResNet(const std::vector<int>& stages, bool bottleneck, const ModelOptions& options)
      : StagedModel(options) {
    constexpr int64_t kStemWidth = 64;
    constexpr int64_t kLargestSmallImage = 64;
    const bool small = options.stem == Stem::small || (options.stem == Stem::automatic &&
                                                       options.image_size <= kLargestSmallImage);
    stem_ = register_module("stem", std::make_shared<Sequential>());
    int index = 0;
    append_conv_norm_relu(*stem_, index,
                          small ? make_conv(options.channels, kStemWidth, 3, 1, 1, false, options)
                                : make_conv(options.channels, kStemWidth, 7, 2, 3, false, options),
                          kStemWidth, options);
    if (!small) {
      Pool2dOptions pool;
      pool.kernel = {3, 3};
      pool.stride = {2, 2};
      pool.padding = {1, 1};
      stem_->append(std::to_string(index), std::make_shared<MaxPool2d>(pool));
    }
    int64_t in = kStemWidth;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      const int64_t width = kStemWidth << stage;
      for (int i = 0; i < stages[stage]; ++i) {
        const int64_t stride = i == 0 && stage > 0 ? 2 : 1;
        blocks_.push_back(register_module(
            "blocks." + std::to_string(blocks_.size()),
            std::make_shared<ResidualBlock>(in, width, stride, bottleneck, options)));
        in = width * (bottleneck ? 4 : 1);
      }
    }
    fc_ = register_module(
        "fc", std::make_shared<Linear>(Linear::Options{in, options.classes}, options.tensor));
  }

 protected:
  Tensor forward(const Tensor& x) override {
    Tensor y = (*stem_)(x);
    for (const auto& block : blocks_) y = run_stage(*block, y, checkpointed());
    return (*fc_)(flatten(global_avg_pool2d(y), 1));
  }

 private:
  std::shared_ptr<Sequential> stem_;
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  std::shared_ptr<Linear> fc_;
};

}  // namespace

std::shared_ptr<Module> make_resnet18(const ModelOptions& options) {
  return std::make_shared<ResNet>(std::vector<int>{2, 2, 2, 2}, false, options);
}

std::shared_ptr<Module> make_resnet50(const ModelOptions& options) {
  return std::make_shared<ResNet>(std::vector<int>{3, 4, 6, 3}, true, options);
}

}  // namespace headroom
