// What the models are built of: convolution + norm + activation in the fused and the separate form.
#pragma once

#include <memory>

#include "nn/layers.h"
#include "nn/models/models.h"

namespace headroom {

std::shared_ptr<Conv2d> make_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride,
                                  int64_t padding, bool bias, const ModelOptions& options);

// relu: fused into the norm where options.in_place says so; otherwise the caller adds an
// activation.
std::shared_ptr<BatchNorm2d> make_norm(int64_t channels, bool relu, const ModelOptions& options);

// conv, norm, relu as children "i", "i+1" (and "i+2" when separate) of `to`.
void append_conv_norm_relu(Sequential& to, int& index, std::shared_ptr<Conv2d> conv,
                           int64_t channels, const ModelOptions& options);

// A model whose stages run under checkpoints or not, which may change between steps.
class StagedModel : public Module {
 public:
  explicit StagedModel(const ModelOptions& options) : checkpointed_(options.checkpoint) {}
  void set_checkpointed(bool on) { checkpointed_ = on; }

 protected:
  bool checkpointed() const { return checkpointed_; }

 private:
  bool checkpointed_;
};

// Runs `stage` under a checkpoint if asked for.
Tensor run_stage(Module& stage, const Tensor& x, bool under_checkpoint);

std::shared_ptr<Module> make_lenet(const ModelOptions& options);
std::shared_ptr<Module> make_vgg16(const ModelOptions& options);
std::shared_ptr<Module> make_resnet18(const ModelOptions& options);
std::shared_ptr<Module> make_resnet50(const ModelOptions& options);

}  // namespace headroom
