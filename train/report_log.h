// The log of a run: JSON lines, one per optimizer step and one per epoch.
//
//   {"event":"step","step":12,"epoch":1,"images":64,"loss":1.93,"images_per_s":4120.5,
//    "allocated":8123392,"peak_allocated":20135424}
//   {"event":"epoch","epoch":1,"step":157,"train_loss":0.61,"test_loss":0.12,"test_accuracy":0.964,
//    "loss_scale":null,"seconds":4.2}
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "train/trainer.h"

namespace headroom {

class RunLog : public TrainObserver {
 public:
  // Opens the file: emptied, or kept and added to. Throws InvalidArgument naming it if it cannot be
  // written.
  RunLog(const std::string& path, bool append, Device device);

  // Each line is handed to the system as it is made. Throws DataError if that fails. Reading a
  // step's loss waits for the device.
  void on_start(const RunInfo& info) override;
  void on_step(const StepInfo& step) override;
  void on_out_of_memory(const OutOfMemoryInfo& what) override;
  void on_threshold(const ThresholdInfo& what) override;
  void on_epoch(const EpochInfo& epoch) override;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write(const std::string& line);

  std::string path_;
  Device device_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t step_ = 0;
  double seconds_ = 0;  // when the step before ended
};

}  // namespace headroom
