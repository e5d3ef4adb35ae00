// Writing the log.
#include "train/report_log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/memory/caching_allocator.h"
#include "train/flags.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

RunLog::RunLog(const std::string& path, bool append, Device device) : path_(path), device_(device) {
  std::error_code error;
  CHECK_ARG(!std::filesystem::is_fifo(path, error), "--log ", path,
            ": is a pipe, which would wait for a reader; needs a file");
  file_.reset(std::fopen(path.c_str(), append ? "a" : "w"));
  CHECK_ARG(file_, "--log ", path, ": cannot be written: ", std::strerror(errno));
}

void RunLog::write(const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  if (!written) {
    throw DataError(detail::concat("--log ", path_, ": cannot be written: ", std::strerror(errno)));
  }
}

void RunLog::on_start(const RunInfo& info) { step_ = info.first_step; }

void RunLog::on_step(const StepInfo& step) {
  const Json loss = device_.is_meta() ? Json(nullptr) : Json(step.read_loss());
  const double elapsed = step.seconds - seconds_;
  seconds_ = step.seconds;
  step_ = step.step;
  const Json line = {{"event", "step"},
                     {"step", step.step},
                     {"epoch", step.epoch},
                     {"images", step.images},
                     {"loss", loss},
                     {"lr", device_.is_meta() ? Json(nullptr) : Json(step.read_lr())},
                     {"images_per_s", elapsed > 0 && !device_.is_meta()
                                          ? Json(static_cast<double>(step.images) / elapsed)
                                          : Json()},
                     {"allocated", memory_allocated(device_)},
                     {"peak_allocated", step.peak_bytes}};
  write(line.dump());
}

void RunLog::on_out_of_memory(const OutOfMemoryInfo& what) {
  const Json line = {{"event", "out_of_memory"},
                     {"in", what.in_evaluation ? "evaluation" : "step"},
                     {"step", what.step},
                     {"message", what.message},
                     {"requested", what.facts.requested_bytes},
                     {"allocated", what.facts.allocated_bytes},
                     {"reserved", what.facts.reserved_bytes},
                     {"limit", what.facts.limit_bytes},
                     {"batch_before", what.batch_before},
                     {"accum_before", what.accum_before},
                     {"batch", what.batch},
                     {"accum", what.accum}};
  write(line.dump());
}

void RunLog::on_threshold(const ThresholdInfo& what) {
  const Json line = {{"event", "memory_threshold"},
                     {"step", what.step},
                     {"used", what.used_bytes},
                     {"capacity", what.capacity_bytes},
                     {"action", name_of(what.action)},
                     {"used_after", what.used_after_bytes},
                     {"batch", what.batch},
                     {"accum", what.accum}};
  write(line.dump());
}

void RunLog::on_epoch(const EpochInfo& epoch) {
  const auto measured = [&](bool is_known, double value) {
    return is_known && !device_.is_meta() ? Json(value) : Json(nullptr);
  };
  const Json line = {{"event", "epoch"},
                     {"epoch", epoch.epoch},
                     {"step", step_},
                     {"train_loss", measured(true, epoch.train_loss)},
                     {"test_loss", measured(epoch.evaluated, epoch.test_loss)},
                     {"test_accuracy", measured(epoch.evaluated, epoch.test_accuracy)},
                     {"loss_scale", measured(epoch.loss_scale > 0, epoch.loss_scale)},
                     {"seconds", epoch.seconds}};
  write(line.dump());
}

}  // namespace headroom
