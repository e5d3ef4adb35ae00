// Progress lines and when they are written.
#include "train/display.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

namespace headroom {
namespace {

Progress example() {
  Progress p;
  p.epoch = 2;
  p.epochs = 3;
  p.step = 210;
  p.total_steps = 471;
  p.images_per_s = 1234.4;
  p.has_loss = true;
  p.loss = 0.12345;
  p.allocated_bytes = 12 << 20;
  p.peak_bytes = 25 << 20;
  p.seconds_left = 12.4;
  return p;
}

// A display that writes to memory, with a clock that the test moves.
class DisplayTest : public ::testing::Test {
 protected:
  ~DisplayTest() override {
    display_.reset();
    std::fclose(stream_);
    std::free(text_);
  }

  Display& open(bool terminal, Device device = Device::cpu()) {
    DisplayOptions options;
    options.terminal = terminal;
    options.now = [this] { return now_; };
    display_ = std::make_unique<Display>(stream_, device, config_, options);
    return *display_;
  }

  void start() {
    RunInfo info;
    info.device_name = "cpu";
    info.epochs = 2;
    info.total_steps = 2000;
    info.steps_per_epoch = 1000;
    info.train_images = 64000;
    info.test_images = 100;
    display_->on_start(info);
  }

  // `count` steps of 64 images, each of which takes `seconds`.
  void run_steps(int count, double seconds) {
    for (int i = 0; i < count; ++i) {
      now_ += seconds;
      ++step_;
      display_->on_step({step_, 1, 64, 64 * step_, static_cast<double>(step_) * seconds, 0,
                         [this] {
                           ++losses_read_;
                           return 0.5;
                         },
                         [] { return 0.1; }});
    }
  }

  std::string written() {
    std::fflush(stream_);
    return {text_, length_};
  }

  int lines(const std::string& part) {
    const std::string text = written();
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++count;
    }
    return count;
  }

  TrainConfig config_;
  char* text_ = nullptr;
  size_t length_ = 0;
  std::FILE* stream_ = open_memstream(&text_, &length_);
  std::unique_ptr<Display> display_;
  double now_ = 100;
  int64_t step_ = 0;
  int losses_read_ = 0;
};

TEST(ProgressLine, ShowsAllThatIsKnown) {
  EXPECT_EQ(
      plain_line(example()),
      "epoch 2/3  step 210/471  1234 images/s  loss 0.1235  memory 12.00 MiB  peak 25.00 MiB  "
      "0:12 left");
}

TEST(ProgressLine, LeavesOutWhatIsNotKnown) {
  Progress p = example();
  p.has_loss = false;
  p.images_per_s = p.seconds_left = -1;
  EXPECT_EQ(plain_line(p), "epoch 2/3  step 210/471  memory 12.00 MiB  peak 25.00 MiB");
}

TEST(ProgressLine, ShowsALossThatIsNotANumber) {
  Progress p = example();
  p.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(plain_line(p).find("loss nan"), std::string::npos);
}

TEST(ProgressLine, NeverFillsTheTerminalsWidth) {
  for (int columns = 1; columns < 200; ++columns) {
    const std::string line = terminal_line(example(), columns);
    EXPECT_LE(static_cast<int>(line.size()), std::max(columns - 1, 1)) << columns;
  }
}

TEST(ProgressLine, GivesUpWhatMattersLeastFirst) {
  EXPECT_NE(terminal_line(example(), 200).find("[============                ]"),
            std::string::npos);
  EXPECT_NE(terminal_line(example(), 109).find("[===     ]  step 210/471  1234 images/s"),
            std::string::npos)
      << terminal_line(example(), 109);
  EXPECT_EQ(terminal_line(example(), 80),
            "epoch 2/3  step 210/471  loss 0.1235  memory 12.00 MiB  peak 25.00 MiB");
  EXPECT_EQ(terminal_line(example(), 90),
            "epoch 2/3  step 210/471  loss 0.1235  memory 12.00 MiB  peak 25.00 MiB  0:12 left");
  EXPECT_EQ(terminal_line(example(), 66),
            "epoch 2/3  step 210/471  memory 12.00 MiB  peak 25.00 MiB");
  EXPECT_EQ(terminal_line(example(), 50), "epoch 2/3  step 210/471  peak 25.00 MiB");
}

TEST(ProgressLine, HasCurrentAndPeakMemoryOnEightyColumnsOfALongRun) {
  Progress p = example();
  p.epoch = 123;
  p.epochs = 200;
  p.step = 48123;
  p.total_steps = 78200;
  p.allocated_bytes = int64_t{1001} << 20;
  p.peak_bytes = int64_t{1002} << 20;
  EXPECT_EQ(terminal_line(p, 80),
            "epoch 123/200  step 48123/78200  memory 1001.00 MiB  peak 1002.00 MiB");
}

TEST(ProgressLine, NamesADeviceOnce) {
  RunInfo info;
  info.device_name = "cpu";
  info.device_description = "CPU, 2 hardware threads";
  EXPECT_EQ(device_text(info), "cpu (CPU, 2 hardware threads)");
  info.device_name = "meta:cuda";
  info.device_description = "meta:cuda: counts bytes, runs nothing";
  EXPECT_EQ(device_text(info), "meta:cuda: counts bytes, runs nothing");
}

TEST(ProgressLine, FormatsTimesAndRates) {
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(7), "0:07");
  EXPECT_EQ(format_duration(725), "12:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_rate(3.424), "3.42");
  EXPECT_EQ(format_rate(95.06), "95.1");
  EXPECT_EQ(format_rate(1234.4), "1234");
}

TEST_F(DisplayTest, RedrawsATerminalTenTimesASecondAndReadsTheLossTwice) {
  open(true);
  start();
  run_steps(1000, 0.01);
  EXPECT_GE(lines("\r\033[K"), 80);
  EXPECT_LE(lines("\r\033[K"), 101);
  EXPECT_GE(losses_read_, 15);
  EXPECT_LE(losses_read_, 21);
}

TEST_F(DisplayTest, WritesPlainLinesRarelyAndWithoutControlCharacters) {
  open(false);
  start();
  run_steps(1000, 0.1);
  EXPECT_GE(lines("images/s"), 9);
  EXPECT_LE(lines("images/s"), 11);
  const std::string text = written();
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\033'), std::string::npos);
}

TEST_F(DisplayTest, MeasuresTheRateAndTheTimeLeft) {
  config_.evaluate = false;
  open(false);
  start();
  run_steps(1000, 0.125);
  EXPECT_NE(written().find("step 960/2000  512 images/s"), std::string::npos) << written();
  EXPECT_NE(written().find("2:10 left"), std::string::npos) << written();
}

TEST_F(DisplayTest, AlwaysShowsTheLastStep) {
  open(false);
  start();
  run_steps(2000, 0.0001);
  EXPECT_EQ(lines("step 2000/2000"), 1);
}

TEST_F(DisplayTest, NeverReadsTheLossOfAMetaDevice) {
  open(true, Device::meta(DeviceType::cuda));
  start();
  run_steps(1000, 0.1);
  display_->on_epoch({.epoch = 1});
  EXPECT_EQ(losses_read_, 0);
  EXPECT_EQ(lines("loss"), 0);
}

TEST_F(DisplayTest, EndsARedrawnLineBeforeOtherText) {
  open(true);
  start();
  run_steps(20, 0.1);
  display_->on_epoch({.epoch = 1,
                      .train_loss = 0.5,
                      .test_accuracy = 0.987,
                      .test_loss = 0.25,
                      .evaluated = true,
                      .seconds = 61});
  EXPECT_NE(written().find("\r\033[Kepoch 1/2  train loss 0.5000  test loss 0.2500  test accuracy "
                           "98.70 %  1:01\n"),
            std::string::npos)
      << written();
  run_steps(20, 0.1);
  display_.reset();
  const std::string text = written();
  EXPECT_EQ(text.substr(text.size() - 4), "\r\033[K");
}

}  // namespace
}  // namespace headroom
