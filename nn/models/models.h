// The standard models. Names, order and initialisation of parameters are those of the PyTorch
// models that comparisons use, so weights move both ways.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"

namespace headroom {

enum class Stem : uint8_t {
  automatic,  // small up to 64x64 images, large above
  small,      // 3x3 convolution, stride 1
  large,      // 7x7 convolution, stride 2, then a 3x3 max pool, stride 2
};

// What makes logits of the last feature map, [n, channels, side, side].
enum class Classifier : uint8_t {
  automatic,  // the model's own: linear for lenet, pool for all others
  pool,       // the mean of the map, then one fully connected layer
  // Fully connected layers on all of the map, with ReLU between them: of 512 units in lenet, twice
  // 4096 in vgg16 (as Simonyan and Zisserman have it, but for the dropout). Their weights grow with
  // the map.
  linear,
  // A 3x3 convolution (1x1 on maps below 3x3) to twice the channels, at most 512, ReLU, a 1x1
  // convolution to the classes, and the mean of that (as Lin et al. 2014, "Network in network").
  // Its weights do not depend on the size of images.
  conv,
};
const char* name_of(Classifier classifier);  // "auto", "pool", "linear", "conv"

struct ModelOptions {
  int64_t classes = 10;
  int64_t channels = 3;         // of the images
  int64_t image_size = 32;      // height and width
  Stem stem = Stem::automatic;  // resnets only
  Classifier classifier = Classifier::automatic;
  // Fused norm + ReLU (+ residual) layers and in-place ReLU; false builds convolution, norm, add
  // and activation as separate out-of-place layers.
  bool in_place = true;
  // Activation checkpointing: per residual block, per pooling stage of vgg16 and lenet.
  bool checkpoint = false;
  TensorOptions tensor;  // device, dtype and memory format of the parameters
};

// lenet:    conv5x5(32) relu pool, conv5x5(64) relu pool, fc 512 relu, fc classes
// vgg16:    thirteen 3x3 convolutions with batch norm in five stages, one fc layer (Simonyan and
//           Zisserman 2015, in its batch-norm form for small images; larger maps are averaged
//           before the fc)
// Both with another Classifier instead of these fc layers, if asked.
// resnet18: basic blocks 2-2-2-2; resnet50: bottleneck blocks 3-4-6-3 with the stride in the 3x3
//           convolution (He et al. 2016)
// The model takes images [n, channels, image_size, image_size] and gives logits [n, classes].
// Throws InvalidArgument for an unknown name, for no class or channel, for a classifier that the
// model does not have, and for images too small for the model: below 4x4 for lenet, 32x32 for
// vgg16.
std::shared_ptr<Module> make_model(const std::string& name, const ModelOptions& options);
const std::vector<std::string>& model_names();  // what make_model takes

// The classifiers that a model may have, its own first; none for an unknown name.
std::vector<Classifier> classifiers_of(const std::string& name);

// Switches ModelOptions::checkpoint of a model made here, between steps. Gradients stay the same to
// the bit. Throws InvalidArgument for any other module.
void set_checkpointed(Module& model, bool on);

}  // namespace headroom
