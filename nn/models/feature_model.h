// What lenet and vgg16 have in common: pooling stages, and a classifier on the last map.
#pragma once

#include <memory>
#include <vector>

#include "nn/models/blocks.h"

namespace headroom {

// Children: "features", whose layers are numbered through all stages, and "classifier".
class FeatureModel : public StagedModel {
 protected:
  explicit FeatureModel(const ModelOptions& options);

  // The last map has `channels` channels and is side x side. `widths` are those of the layers
  // before the last one in Classifier::linear. Called once, at the end of a constructor.
  void add_classifier(Classifier kind, int64_t channels, int64_t side,
                      const std::vector<int64_t>& widths, const ModelOptions& options);
  Sequential& add_stage();

  Tensor forward(const Tensor& x) override;

 private:
  Classifier kind_ = Classifier::pool;
  std::shared_ptr<Sequential> features_;
  std::shared_ptr<Module> classifier_;
};

}  // namespace headroom
