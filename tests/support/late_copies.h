// A runtime whose copy stream is as late as its events allow: a copy happens when something waits
// for it and not before. What forgets to wait meets stale bytes. The compute stream runs at once,
// so what the copy stream has to wait for is checked instead: before each copy, something that the
// compute stream recorded after the copy before it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/base/device.h"

namespace headroom::test {

class LateCopies final : public DeviceRuntime {
 public:
  std::string description() const override { return base_->description(); }
  void* acquire(int64_t bytes) override { return base_->acquire(bytes); }
  void release(void* segment, int64_t bytes) noexcept override { base_->release(segment, bytes); }
  MemoryInfo memory_info() override { return base_->memory_info(); }
  void* host_acquire(int64_t bytes) override { return base_->host_acquire(bytes); }
  void host_release(void* memory) noexcept override { base_->host_release(memory); }

  void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream) override {
    const auto copy = [=, this] { base_->copy_to_device(to, from, bytes, stream); };
    stream == Stream::copy ? queue(copy) : copy();
  }
  void queue_copy_to_host(void* to, const void* from, int64_t bytes, Stream stream) override {
    const auto copy = [=, this] { base_->queue_copy_to_host(to, from, bytes, stream); };
    stream == Stream::copy ? queue(copy) : copy();
  }
  void copy_to_host(void* to, const void* from, int64_t bytes) override {
    base_->copy_to_host(to, from, bytes);
  }
  void copy_within(void* to, const void* from, int64_t bytes) override {
    base_->copy_within(to, from, bytes);
  }
  void fill_bytes(void* to, uint8_t value, int64_t bytes) override {
    base_->fill_bytes(to, value, bytes);
  }

  void synchronize() override { run_to(queued_); }
  void check_async_error() override { base_->check_async_error(); }

  EventHandle create_event() override { return base_->create_event(); }
  void destroy_event(EventHandle event) noexcept override {
    copies_before_.erase(event);
    base_->destroy_event(event);
  }
  void record_event(EventHandle event, Stream stream) override {
    copies_before_.erase(event);
    if (stream == Stream::copy) copies_before_[event] = queued_;
    if (stream == Stream::compute) fresh_.insert(event);
    base_->record_event(event, stream);
  }
  void wait_event(EventHandle event, Stream stream) override {
    if (stream == Stream::compute) synchronize_event(event);
    if (stream == Stream::copy) follows_ |= fresh_.count(event) > 0;
  }
  void synchronize_event(EventHandle event) override {
    const auto mark = copies_before_.find(event);
    if (mark != copies_before_.end()) run_to(mark->second);
  }
  float elapsed_ms(EventHandle begin, EventHandle end) override {
    return base_->elapsed_ms(begin, end);
  }
  void begin_kernel(const char* name) override { base_->begin_kernel(name); }
  void end_kernel(const char* name) override { base_->end_kernel(name); }

 private:
  friend class LateCopyScope;

  void queue(std::function<void()> copy) {
    EXPECT_TRUE(follows_) << "a copy that does not wait for the compute stream";
    follows_ = false;
    fresh_.clear();
    waiting_.push_back(std::move(copy));
    ++queued_;
  }
  void run_to(int64_t count) {
    for (; done_ < count; ++done_) {
      waiting_.front()();
      waiting_.pop_front();
    }
  }

  std::unique_ptr<DeviceRuntime> base_;
  std::deque<std::function<void()>> waiting_;
  int64_t queued_ = 0, done_ = 0;
  std::map<EventHandle, int64_t> copies_before_;  // events recorded on the copy stream
  std::set<EventHandle> fresh_;                   // recorded on the compute stream since a copy
  bool follows_ = false;
};

// A device's copy stream is late while it lives.
class LateCopyScope {
 public:
  explicit LateCopyScope(Device device) : device_(device) {
    auto late = std::make_unique<LateCopies>();
    late_ = late.get();
    late_->base_ = exchange_runtime(device, std::move(late));
  }
  ~LateCopyScope() {
    late_->synchronize();
    const auto late = exchange_runtime(device_, std::move(late_->base_));
  }
  LateCopyScope(const LateCopyScope&) = delete;
  LateCopyScope& operator=(const LateCopyScope&) = delete;

  int64_t copies() const { return late_->queued_; }

 private:
  Device device_;
  LateCopies* late_;
};

}  // namespace headroom::test
