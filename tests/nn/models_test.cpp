// The models: names and counts of their parameters, and that fused, separate and checkpointed forms
// are one network.
#include "nn/models/models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"

namespace headroom {
namespace {

ModelOptions options_of(int64_t classes, int64_t channels, int64_t side, DType dtype = DType::f32) {
  ModelOptions options;
  options.classes = classes;
  options.channels = channels;
  options.image_size = side;
  options.tensor = {dtype, Device::cpu(), MemoryFormat::channels_last};
  return options;
}

// Counting needs no memory.
ModelOptions on_meta(ModelOptions options) {
  options.tensor.device = Device::meta(DeviceType::cpu);
  return options;
}

TEST(Models, HaveTheNamesOfTheirPyTorchCounterparts) {
  std::ifstream in(HEADROOM_SOURCE_DIR "/tests/data/reference.json");
  const auto reference = nlohmann::json::parse(in);
  for (const auto& [name, expected] : reference["models"].items()) {
    ModelOptions options =
        on_meta(options_of(expected["classes"], expected["channels"], expected["side"]));
    const std::string base = name.substr(0, name.find('-'));
    for (const Classifier classifier : classifiers_of(base)) {
      if (name == base + "-" + name_of(classifier)) options.classifier = classifier;
    }
    const auto model = make_model(base, options);
    std::set<std::string> ours, theirs;
    for (const NamedTensor& entry : model->named_parameters()) ours.insert(entry.name);
    for (const auto& [key, value] : expected["gradients"].items()) theirs.insert(key);
    EXPECT_EQ(ours, theirs) << name;
    ours.clear();
    theirs.clear();
    for (const NamedTensor& entry : model->named_buffers()) ours.insert(entry.name);
    for (const auto& [key, value] : expected["buffers"].items()) theirs.insert(key);
    EXPECT_EQ(ours, theirs) << name;
  }
}

TEST(Models, HaveThePublishedNumbersOfParameters) {
  const auto count = [](const char* name, const ModelOptions& options) {
    return make_model(name, on_meta(options))->parameter_count();
  };
  EXPECT_EQ(count("lenet", options_of(10, 1, 28)), 1'663'370);
  EXPECT_EQ(count("vgg16", options_of(10, 3, 32)), 14'724'042);
  EXPECT_EQ(count("resnet18", options_of(10, 3, 32)), 11'173'962);
  EXPECT_EQ(count("resnet50", options_of(1000, 3, 224)), 25'557'032);
}

TEST(Models, WideLinearClassifiersHoldMostWeightsAndConvolutionsDoNotGrowWithTheMap) {
  const auto count = [](const char* name, Classifier classifier, ModelOptions options) {
    options.classifier = classifier;
    return make_model(name, on_meta(options))->parameter_count();
  };
  const ModelOptions digits = options_of(10, 1, 28), photos = options_of(1000, 3, 224);
  constexpr int64_t kLenetFeatures = 52'096, kVggFeatures = 14'718'912;
  EXPECT_EQ(count("lenet", Classifier::linear, digits), 1'663'370);
  EXPECT_EQ(count("lenet", Classifier::conv, digits), kLenetFeatures + 64 * 9 * 128 + 128 + 1'290);
  EXPECT_EQ(count("lenet", Classifier::pool, digits), kLenetFeatures + 650);
  // The published 123.6 million.
  EXPECT_EQ(count("vgg16", Classifier::linear, photos), kVggFeatures + 123'642'856);
  EXPECT_EQ(count("vgg16", Classifier::conv, photos), kVggFeatures + 512 * 9 * 512 + 512 + 513'000);
  EXPECT_EQ(count("vgg16", Classifier::pool, photos), kVggFeatures + 513'000);
  EXPECT_EQ(count("vgg16", Classifier::automatic, photos),
            count("vgg16", Classifier::pool, photos));
  for (const Classifier classifier : {Classifier::pool, Classifier::conv}) {
    EXPECT_EQ(count("vgg16", classifier, options_of(10, 3, 96)),
              count("vgg16", classifier, options_of(10, 3, 320)));
  }
}

TEST(Models, FormsDifferInLayersButNotInNames) {
  for (const std::string& name : model_names()) {
    ModelOptions options = on_meta(options_of(10, 3, 64));
    std::vector<std::string> names;
    for (const bool in_place : {true, false}) {
      for (const bool checkpointed : {false, true}) {
        options.in_place = in_place;
        options.checkpoint = checkpointed;
        std::vector<std::string> now;
        for (const NamedTensor& entry : make_model(name, options)->state_dict()) {
          now.push_back(entry.name);
        }
        if (names.empty()) names = now;
        EXPECT_EQ(now, names) << name;
      }
    }
  }
}

TEST(Models, RefuseWhatTheyCannotBe) {
  EXPECT_THROW(make_model("alexnet", options_of(10, 3, 32)), InvalidArgument);
  EXPECT_THROW(make_model("vgg16", options_of(10, 3, 28)), InvalidArgument);
  EXPECT_THROW(make_model("lenet", options_of(10, 1, 3)), InvalidArgument);
  EXPECT_THROW(make_model("resnet18", options_of(0, 3, 32)), InvalidArgument);
  for (const Classifier classifier : {Classifier::linear, Classifier::conv}) {
    ModelOptions options = options_of(10, 3, 32);
    options.classifier = classifier;
    EXPECT_THROW(make_model("resnet18", options), InvalidArgument);
  }
  EXPECT_THROW(make_model("resnet18", options_of(10, 0, 32)), InvalidArgument);
}

TEST(Models, TakeTheStemThatFitsTheImage) {
  const auto stem_kernel = [](int64_t side, Stem stem) {
    ModelOptions options = on_meta(options_of(10, 3, side));
    options.stem = stem;
    return make_model("resnet18", options)->named_parameters()[0].tensor.size(2);
  };
  EXPECT_EQ(stem_kernel(64, Stem::automatic), 3);
  EXPECT_EQ(stem_kernel(65, Stem::automatic), 7);
  EXPECT_EQ(stem_kernel(32, Stem::large), 7);
  EXPECT_EQ(stem_kernel(224, Stem::small), 3);
}

TEST(Models, GiveLogitsForOddImagesToo) {
  for (const auto& [name, side] : {std::pair<const char*, int64_t>{"lenet", 29},
                                   {"vgg16", 45},
                                   {"resnet18", 33},
                                   {"resnet50", 97}}) {
    const auto options = on_meta(options_of(7, 3, side));
    const auto model = make_model(name, options);
    EXPECT_EQ((*model)(empty({2, 3, side, side}, options.tensor)).shape(), (Shape{2, 7})) << name;
  }
}

// One forward and backward pass; gradients by parameter, buffers last.
struct Pass {
  std::vector<double> logits;
  std::vector<std::vector<double>> values;
};

Pass run(const std::string& name, ModelOptions options) {
  manual_seed(7);
  const auto model = make_model(name, options);
  Tensor x = empty({2, options.channels, options.image_size, options.image_size}, options.tensor);
  {
    const NoGrad no_grad;
    normal_(x);
  }
  Pass out;
  {
    const Tensor logits = (*model)(x);
    out.logits = logits.to_vector<double>();
    backward(cross_entropy(
        logits, from_vector(std::vector<int64_t>{1, 3}, {2}, {DType::i64, Device::cpu()})));
  }
  for (const NamedTensor& entry : model->named_parameters()) {
    out.values.push_back(entry.tensor.grad().to_vector<double>());
  }
  for (const NamedTensor& entry : model->state_dict()) {
    if (entry.name.find("running") != std::string::npos ||
        entry.name.find("tracked") != std::string::npos) {
      out.values.push_back(entry.tensor.to_vector<double>());
    }
  }
  return out;
}

struct ModelCase {
  const char* name;
  int64_t channels, side;
  Classifier classifier = Classifier::automatic;

  ModelOptions options(DType dtype = DType::f32) const {
    ModelOptions out = options_of(5, channels, side, dtype);
    out.classifier = classifier;
    return out;
  }
};
constexpr ModelCase kSmallRuns[] = {{"lenet", 1, 16},
                                    {"vgg16", 3, 32},
                                    {"resnet18", 3, 16},
                                    {"resnet50", 3, 16},
                                    {"lenet", 1, 16, Classifier::conv},
                                    {"lenet", 1, 16, Classifier::pool},
                                    {"vgg16", 3, 32, Classifier::linear},
                                    {"vgg16", 3, 64, Classifier::conv}};

TEST(Models, CheckpointedGradientsAreThoseOfThePlainModelBitForBit) {
  for (const ModelCase& c : kSmallRuns) {
    ModelOptions options = c.options();
    const Pass plain = run(c.name, options);
    options.checkpoint = true;
    const Pass checkpointed = run(c.name, options);
    EXPECT_EQ(checkpointed.logits, plain.logits) << c.name;
    EXPECT_EQ(checkpointed.values, plain.values) << c.name;
  }
}

// In f64 the separate layers differ from the fused ones by rounding alone.
TEST(Models, SeparateLayersGiveTheGradientsOfTheFusedOnes) {
  for (const ModelCase& c : kSmallRuns) {
    ModelOptions options = c.options(DType::f64);
    const Pass fused = run(c.name, options);
    options.in_place = false;
    const Pass separate = run(c.name, options);
    for (size_t i = 0; i < fused.logits.size(); ++i) {
      EXPECT_NEAR(separate.logits[i], fused.logits[i], 1e-10) << c.name;
    }
    ASSERT_EQ(separate.values.size(), fused.values.size());
    for (size_t p = 0; p < fused.values.size(); ++p) {
      double largest = 0, worst = 0;
      for (size_t i = 0; i < fused.values[p].size(); ++i) {
        largest = std::max(largest, std::abs(fused.values[p][i]));
        worst = std::max(worst, std::abs(separate.values[p][i] - fused.values[p][i]));
      }
      EXPECT_LE(worst, 1e-9 * (largest + 1e-3)) << c.name << " parameter " << p;
    }
  }
}

TEST(Models, EvaluationChangesNothing) {
  const auto options = options_of(5, 3, 16);
  manual_seed(1);
  const auto model = make_model("resnet18", options);
  const Tensor x = ones({2, 3, 16, 16}, options.tensor);
  model->eval();
  const NoGrad no_grad;
  const auto before = model->named_buffers()[0].tensor.to_vector<float>();
  const auto first = (*model)(x).to_vector<float>();
  EXPECT_EQ((*model)(x).to_vector<float>(), first);
  EXPECT_EQ(model->named_buffers()[0].tensor.to_vector<float>(), before);
}

}  // namespace
}  // namespace headroom
