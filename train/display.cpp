// Progress of a run.
#include "train/display.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "train/terminal.h"

namespace headroom {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLossSeconds = 0.5;    // reading a loss waits for the device
constexpr double kPlainSeconds = 10;    // between plain lines
constexpr double kRateSeconds = 0.5;    // the shortest stretch that a rate is measured over
constexpr double kRateSmoothing = 0.3;  // weight of the newest stretch
constexpr size_t kMinBarColumns = 10, kMaxBarColumns = 30;

// The parts of a line, each with its turn to go where the line is too long: the highest number goes
// first, 0 never. What memory there is goes after all else.
struct Part {
  int rank;
  std::string text;
};
constexpr int kFirstToGo = 5;

std::vector<Part> parts_of(const Progress& p) {
  std::vector<Part> parts;
  parts.push_back({0, fmt::format("epoch {}/{}", p.epoch, p.epochs)});
  parts.push_back({0, fmt::format("step {}/{}", p.step, p.total_steps)});
  if (p.images_per_s >= 0) parts.push_back({kFirstToGo, format_rate(p.images_per_s) + " images/s"});
  if (p.has_loss) parts.push_back({3, fmt::format("loss {:.4f}", p.loss)});
  parts.push_back({2, "memory " + format_bytes(p.allocated_bytes)});
  parts.push_back({1, "peak " + format_bytes(p.peak_bytes)});
  if (p.seconds_left >= 0) parts.push_back({4, format_duration(p.seconds_left) + " left"});
  return parts;
}

std::string joined(const std::vector<Part>& parts) {
  std::string out;
  for (const Part& part : parts) out += (out.empty() ? "" : "  ") + part.text;
  return out;
}

// "10000 images" and "1 image".
std::string counted(int64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(std::clamp(seconds, 0.0, 1e9)));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest)
                   : fmt::format("{}:{:02}", minutes, rest);
}

std::string format_rate(double per_second) {
  const int decimals = per_second < 10 ? 2 : per_second < 100 ? 1 : 0;
  return fmt::format("{:.{}f}", per_second, decimals);
}

std::string device_text(const RunInfo& info) {
  const std::string& about = info.device_description;
  const bool has_name = about.compare(0, info.device_name.size(), info.device_name) == 0;
  return has_name ? about : fmt::format("{} ({})", info.device_name, about);
}

std::string plain_line(const Progress& progress) { return joined(parts_of(progress)); }

std::string terminal_line(const Progress& progress, int columns) {
  // One column stays free: a full line makes some terminals wrap.
  const auto room = static_cast<size_t>(std::max(columns - 1, 1));
  std::vector<Part> parts = parts_of(progress);
  const size_t used = joined(parts).size() + 2;
  if (used + kMinBarColumns <= room) {
    const size_t width = std::min(room - used, kMaxBarColumns);
    parts.insert(parts.begin() + 1, {0, bar(progress.step, progress.total_steps, width)});
  }
  for (int rank = kFirstToGo; rank > 0 && joined(parts).size() > room; --rank) {
    std::erase_if(parts, [rank](const Part& part) { return part.rank == rank; });
  }
  return joined(parts).substr(0, room);
}

DisplayOptions display_options_of(std::FILE* stream) {
  DisplayOptions options;
  options.terminal = is_terminal(stream);
  options.query_columns = [stream] { return terminal_size(stream).columns; };
  return options;
}

Display::Display(std::FILE* stream, Device device, const TrainConfig& config,
                 DisplayOptions options)
    : stream_(stream), device_(device), config_(config), options_(std::move(options)) {
  if (!options_.now) options_.now = steady_seconds;
}

Display::~Display() { clear_line(); }

// A reader that went away is no reason to stop training, so failures are ignored.
void Display::write(const std::string& text) {
  std::fputs(text.c_str(), stream_);
  std::fflush(stream_);
}

void Display::draw(const std::string& line) {
  write("\r\033[K" + line);
  line_open_ = true;
}

void Display::clear_line() {
  if (!line_open_) return;
  write("\r\033[K");
  line_open_ = false;
}

void Display::print(const std::string& line) {
  clear_line();
  write(line + "\n");
}

void Display::on_start(const RunInfo& info) {
  info_ = info;
  for (const std::string& warning : info.warnings) print("train: note: " + warning);
  print(
      fmt::format("{} with {} parameters on {}: {} for training, {} for testing, {}x{}x{}, {} "
                  "classes",
                  model_text(config_), info.parameter_count, info.data_name,
                  counted(info.train_images, "image"), info.test_images, info.image_shape.channels,
                  info.image_shape.height, info.image_shape.width, info.classes));
  const int64_t window = config_.batch * config_.accum;
  const std::string split =
      config_.accum > 1 ? fmt::format(" ({} x {})", config_.batch, config_.accum) : std::string();
  print(fmt::format("{}; {}: {} of {}{}", device_text(info), counted(info.epochs, "epoch"),
                    counted(info.total_steps, "step"), counted(window, "image"), split));
  if (info.first_step > 0) {
    print(fmt::format("resumed from {} after step {}", config_.resume, info.first_step));
  }
  last_draw_ = options_.now();
  last_loss_ = last_draw_ - kLossSeconds;
  rate_step_ = info.first_step;
}

// The first step is left out: it searches plans and makes state, so its rate says nothing.
void Display::update_rate(const StepInfo& step) {
  if (device_.is_meta()) return;  // it computes nothing, so its speed is no one's
  const bool is_first = step.step == info_.first_step + 1;
  const double elapsed = step.seconds - rate_seconds_;
  if (!is_first && elapsed < kRateSeconds && step_seconds_ >= 0) return;
  if (!is_first && elapsed > 0) {
    const double rate = static_cast<double>(step.images_seen - rate_images_) / elapsed;
    const double per_step = elapsed / static_cast<double>(step.step - rate_step_);
    const double weight = step_seconds_ < 0 ? 1 : kRateSmoothing;
    progress_.images_per_s =
        step_seconds_ < 0 ? rate : progress_.images_per_s * (1 - weight) + rate * weight;
    step_seconds_ = std::max(step_seconds_, 0.0) * (1 - weight) + per_step * weight;
  }
  rate_step_ = step.step;
  rate_images_ = step.images_seen;
  rate_seconds_ = step.seconds;
}

double Display::seconds_left(const StepInfo& step) const {
  if (step_seconds_ < 0) return -1;
  const double training = step_seconds_ * static_cast<double>(info_.total_steps - step.step);
  const bool evaluates = config_.evaluate && info_.test_images > 0;
  const double evaluations = evaluates ? static_cast<double>(info_.epochs - step.epoch + 1) : 0.0;
  return training + evaluations * evaluation_seconds_;
}

bool Display::draws_now(const StepInfo& step) {
  const double now = options_.now();
  const bool is_last = step.step == info_.total_steps;
  if (now - last_draw_ < (options_.terminal ? kRedrawSeconds : kPlainSeconds) && !is_last) {
    return false;
  }
  last_draw_ = now;
  return true;
}

void Display::on_step(const StepInfo& step) {
  update_rate(step);
  if (!draws_now(step)) return;
  if (!device_.is_meta() && last_draw_ - last_loss_ >= kLossSeconds) {
    progress_.loss = step.read_loss();
    progress_.has_loss = true;
    last_loss_ = last_draw_;
  }
  progress_.epoch = step.epoch;
  progress_.epochs = info_.epochs;
  progress_.step = step.step;
  progress_.total_steps = info_.total_steps;
  progress_.allocated_bytes = memory_allocated(device_);
  progress_.peak_bytes = step.peak_bytes;
  progress_.seconds_left = seconds_left(step);
  if (options_.terminal) {
    const int columns = options_.query_columns ? options_.query_columns() : options_.columns;
    draw(terminal_line(progress_, columns));
  } else {
    print(plain_line(progress_));
  }
}

void Display::on_evaluation_begin() {
  evaluation_began_ = options_.now();
  if (options_.terminal) draw("evaluating");
}

void Display::on_out_of_memory(const OutOfMemoryInfo& what) {
  print("train: note: " + what.message);
  if (what.in_evaluation) {
    print(fmt::format("train: note: evaluating again with --eval-batch {} instead of {}",
                      what.batch, what.batch_before));
  } else {
    print(fmt::format(
        "train: note: step {} is tried again with --batch {} --accum {} instead of {} x {}",
        what.step, what.batch, what.accum, what.batch_before, what.accum_before));
  }
}

void Display::on_threshold(const ThresholdInfo& what) {
  const auto done = [&]() -> std::string {
    switch (what.action) {
      case OnThreshold::warn:
        return "going on";
      case OnThreshold::empty_cache:
        return fmt::format("gave cached memory back, {} left", format_bytes(what.used_after_bytes));
      case OnThreshold::checkpoint:
        return "checkpointing from now on";
      case OnThreshold::halve_batch:
        return fmt::format("--batch {} --accum {} from now on", what.batch, what.accum);
      default:
        return "stopping";
    }
  };
  print(fmt::format(
      "train: note: step {} left {} of {} in use ({:.0f} %): {}", what.step,
      format_bytes(what.used_bytes), format_bytes(what.capacity_bytes),
      100.0 * static_cast<double>(what.used_bytes) / static_cast<double>(what.capacity_bytes),
      done()));
}

void Display::on_epoch(const EpochInfo& epoch) {
  if (epoch.evaluated) evaluation_seconds_ = options_.now() - evaluation_began_;
  if (device_.is_meta()) return;  // it has learned nothing
  std::string line =
      fmt::format("epoch {}/{}  train loss {:.4f}", epoch.epoch, info_.epochs, epoch.train_loss);
  if (epoch.evaluated) {
    line += fmt::format("  test loss {:.4f}  test accuracy {:.2f} %", epoch.test_loss,
                        100 * epoch.test_accuracy);
  }
  if (epoch.loss_scale > 0) line += fmt::format("  loss scale {:g}", epoch.loss_scale);
  print(line + "  " + format_duration(epoch.seconds));
}

void Display::on_save(const std::string& path, int64_t step) {
  print(fmt::format("saved {} at step {}", path, step));
}

}  // namespace headroom
