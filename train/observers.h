// Several observers of one run.
#pragma once

#include <vector>

#include "train/trainer.h"

namespace headroom {

// Tells each of them, in the order in which they were added. Borrows them.
class Observers : public TrainObserver {
 public:
  void add(TrainObserver& observer) { all_.push_back(&observer); }
  void on_start(const RunInfo& info) override {
    for (TrainObserver* observer : all_) observer->on_start(info);
  }
  void on_step_begin(int64_t step) override {
    for (TrainObserver* observer : all_) observer->on_step_begin(step);
  }
  void on_used_gradient(const UsedGradientInfo& info) override {
    for (TrainObserver* observer : all_) observer->on_used_gradient(info);
  }
  void on_gradients(const GradientInfo& info) override {
    for (TrainObserver* observer : all_) observer->on_gradients(info);
  }
  void on_step(const StepInfo& step) override {
    for (TrainObserver* observer : all_) observer->on_step(step);
  }
  void on_evaluation_begin() override {
    for (TrainObserver* observer : all_) observer->on_evaluation_begin();
  }
  void on_out_of_memory(const OutOfMemoryInfo& what) override {
    for (TrainObserver* observer : all_) observer->on_out_of_memory(what);
  }
  void on_threshold(const ThresholdInfo& what) override {
    for (TrainObserver* observer : all_) observer->on_threshold(what);
  }
  void on_epoch(const EpochInfo& epoch) override {
    for (TrainObserver* observer : all_) observer->on_epoch(epoch);
  }
  void on_save(const std::string& path, int64_t step) override {
    for (TrainObserver* observer : all_) observer->on_save(path, step);
  }

 private:
  std::vector<TrainObserver*> all_;
};

}  // namespace headroom
