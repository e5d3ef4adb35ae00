// What a person sees while `train` runs: one line that is redrawn on a terminal, plain lines
// elsewhere, and a line per epoch on both.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "train/trainer.h"

namespace headroom {

// Everything that a progress line shows. Sizes are bytes, times seconds; negative values are not
// known yet and are left out.
struct Progress {
  int64_t epoch = 0, epochs = 0;
  int64_t step = 0, total_steps = 0;
  double images_per_s = -1;
  double loss = -1;
  bool has_loss = false;  // a loss may be anything, NaN included
  int64_t allocated_bytes = 0, peak_bytes = 0;
  double seconds_left = -1;
};

// "epoch 2/3  step 210/471  1234 images/s  loss 0.1234  memory 12.00 MiB  peak 25.50 MiB  0:12
// left"
std::string plain_line(const Progress& progress);
// The same in `columns` - 1 columns: with a bar where there is room, else what matters least is
// left out first.
std::string terminal_line(const Progress& progress, int columns);

double steady_seconds();  // of a clock that only goes forward

std::string format_duration(double seconds);  // "0:07", "12:05", "1:02:03"
std::string format_rate(double per_second);   // "3.42", "95.1", "1234"
// "cuda (NVIDIA H200, ...)"; the name once where the description begins with it.
std::string device_text(const RunInfo& info);

struct DisplayOptions {
  bool terminal = false;  // redraw one line instead of printing lines
  int columns = 80;       // of the terminal, asked for anew with every line if query_columns is set
  std::function<int()> query_columns;
  std::function<double()> now;  // seconds of a steady clock; empty takes the system's
};

// Writes to a stream, by default to standard error's.
class Display : public TrainObserver {
 public:
  Display(std::FILE* stream, Device device, const TrainConfig& config, DisplayOptions options);
  ~Display() override;
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;

  void on_start(const RunInfo& info) override;
  void on_step(const StepInfo& step) override;
  void on_evaluation_begin() override;
  void on_out_of_memory(const OutOfMemoryInfo& what) override;
  void on_threshold(const ThresholdInfo& what) override;
  void on_epoch(const EpochInfo& epoch) override;
  void on_save(const std::string& path, int64_t step) override;

 private:
  bool draws_now(const StepInfo& step);
  void update_rate(const StepInfo& step);
  double seconds_left(const StepInfo& step) const;
  void write(const std::string& text);
  void draw(const std::string& line);
  void clear_line();
  void print(const std::string& line);

  std::FILE* stream_;
  Device device_;
  TrainConfig config_;
  DisplayOptions options_;
  RunInfo info_;
  Progress progress_;
  bool line_open_ = false;  // a redrawn line stands on the terminal

  double last_draw_ = 0, last_loss_ = 0;  // when
  double evaluation_began_ = 0, evaluation_seconds_ = 0;
  // Where the rate was measured last.
  int64_t rate_step_ = 0, rate_images_ = 0;
  double rate_seconds_ = 0;
  double step_seconds_ = -1;  // smoothed
};

// Options for a stream as it is: a terminal or not, its width.
DisplayOptions display_options_of(std::FILE* stream);

}  // namespace headroom
