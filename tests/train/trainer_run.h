// What the tests of the trainer share: small configurations, and an observer that remembers.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "train/trainer.h"

namespace headroom::test {

// A run of seconds on noise: the value is that of the arithmetic, not of the accuracy.
inline TrainConfig small_config(const std::string& model = "lenet",
                                const std::string& data = "random:1x12x12:4:50") {
  TrainConfig config;
  config.model = model;
  config.data = data;
  config.device = "cpu";
  config.batch = 8;
  config.epochs = 2;
  config.threads = 2;
  config.loader_threads = 1;
  config.evaluate = false;
  return config;
}

// Remembers what it was told; stops after a step if asked to.
class Recorder : public TrainObserver {
 public:
  void on_step(const StepInfo& step) override {
    steps.push_back(step);
    losses.push_back(step.read_loss());
  }
  void on_epoch(const EpochInfo& epoch) override { epochs.push_back(epoch); }
  void on_save(const std::string&, int64_t step) override { saves.push_back(step); }

  std::vector<StepInfo> steps;
  std::vector<double> losses;
  std::vector<EpochInfo> epochs;
  std::vector<int64_t> saves;
};

inline std::vector<double> weights_of(Trainer& trainer) {
  std::vector<double> out;
  for (const NamedTensor& entry : trainer.model().state_dict()) {
    for (const double v : entry.tensor.to_vector<double>()) out.push_back(v);
  }
  return out;
}

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace headroom::test
