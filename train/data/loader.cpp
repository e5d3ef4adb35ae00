// The ring, its workers and their consumer.
//
// Batches are numbered from 0; batch k lives in slot k % slots. A worker takes a few images of the
// oldest batch that has images left, so that all workers hurry the batch that is needed first. All
// bookkeeping is under one mutex; only reading images is outside it.
#include "train/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace headroom {
namespace {

constexpr int64_t kAlignment = 64;
// Pixels that a worker reads at a time: long enough that taking the mutex does not matter, short
// enough that one batch keeps several workers busy.
constexpr int64_t kGrainBytes = int64_t{128} << 10;
constexpr int64_t kMaxSlots = 4096;
constexpr int64_t kMaxSlotBytes = int64_t{1} << 40;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

HostBuffer heap_buffer(int64_t bytes) {
  constexpr std::align_val_t kAlign{kAlignment};
  auto* memory = static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlign));
  return HostBuffer(memory, [](std::byte* p) { ::operator delete(p, kAlign); });
}

class Loader::Impl {
 public:
  Impl(const Dataset& data, BatchSource source, const LoaderOptions& options);
  ~Impl() { stop(); }

  std::optional<Batch> next();
  void release(const Batch& batch);
  int64_t slot_bytes() const { return labels_at_ + 2 * label_bytes_; }

 private:
  enum class SlotState : uint8_t { free, filling, ready, held };

  struct Slot {
    HostBuffer buffer;
    SlotState state = SlotState::free;
    MicroBatch plan;
    int64_t next_image = 0;     // the first that no worker took yet
    int64_t images_left = 0;    // not finished yet
    int64_t failed_image = -1;  // the first of those that threw
    std::exception_ptr failure;

    int64_t count() const { return static_cast<int64_t>(plan.indices.size()); }
  };

  struct Upcoming {
    MicroBatch plan;
    std::exception_ptr failure;
  };

  struct Task {
    Slot* slot = nullptr;
    int64_t begin = 0, end = 0;
  };

  Slot& slot_of(int64_t batch) { return slots_[static_cast<size_t>(batch) % slots_.size()]; }
  uint8_t* pixels(const Slot& slot) const { return reinterpret_cast<uint8_t*>(slot.buffer.get()); }
  int64_t* labels(const Slot& slot) const {
    return reinterpret_cast<int64_t*>(slot.buffer.get() + labels_at_);
  }
  uint64_t* seeds(const Slot& slot) const {
    return reinterpret_cast<uint64_t*>(slot.buffer.get() + labels_at_ + label_bytes_);
  }

  // With mutex_ held: a range of images to read, or no slot if nothing can be done now.
  Task take_task();
  bool exhausted() const { return source_ended_ && !upcoming_; }
  bool fetch_plan();
  bool open_batch();
  void finish(const Task& task, int64_t failed_image, std::exception_ptr failure);
  // Without it.
  void run(const Task& task, std::unique_lock<std::mutex>& lock);
  void work();
  void stop();

  const Dataset& data_;
  BatchSource source_;
  const LoaderOptions options_;
  int64_t grain_ = 1;        // images of a task
  int64_t labels_at_ = 0;    // offset in a buffer, in bytes
  int64_t label_bytes_ = 0;  // of a buffer's labels, and of its seeds

  std::mutex mutex_;
  std::condition_variable work_to_do_, batch_done_;
  std::vector<Slot> slots_;
  std::optional<Upcoming> upcoming_;  // fetched from the source, has no slot yet
  int64_t opened_ = 0;                // batches that got a slot
  int64_t delivered_ = 0;             // batches that next() returned
  bool source_ended_ = false;
  bool stopping_ = false;
  std::exception_ptr thrown_;  // what next() threw and will throw again
  std::vector<std::thread> workers_;
};

Loader::Impl::Impl(const Dataset& data, BatchSource source, const LoaderOptions& options)
    : data_(data), source_(std::move(source)), options_(options) {
  const int64_t image_bytes = data.shape().bytes();
  CHECK_ARG(options.threads >= 0 && options.threads <= kMaxLoaderThreads,
            "loader: threads must be from 0 to ", kMaxLoaderThreads, ", got ", options.threads);
  CHECK_ARG(options.slots >= 1 && options.slots <= kMaxSlots, "loader: slots must be from 1 to ",
            kMaxSlots, ", got ", options.slots);
  CHECK_ARG(options.max_batch >= 1, "loader: max_batch must be 1 or more, got ", options.max_batch);
  CHECK_ARG(options.max_batch <= kMaxSlotBytes / image_bytes, "loader: a batch of ",
            options.max_batch, " images of ", image_bytes, " bytes is too large");
  grain_ = std::max<int64_t>(1, kGrainBytes / image_bytes);
  label_bytes_ = aligned(options.max_batch * static_cast<int64_t>(sizeof(int64_t)));
  labels_at_ = aligned(options.max_batch * image_bytes);
  slots_.resize(static_cast<size_t>(options.slots));
  for (Slot& slot : slots_) {
    slot.buffer = options.make_buffer(slot_bytes());
    CHECK(slot.buffer != nullptr, "loader: no buffer of ", slot_bytes(), " bytes");
  }
  try {
    for (int64_t i = 0; i < options.threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    const size_t started = workers_.size();
    stop();
    throw Error(detail::concat("loader: of ", options.threads, " threads only ", started,
                               " could be started: ", error.what(),
                               "; --loader-threads says how many"));
  } catch (...) {
    stop();
    throw;
  }
}

void Loader::Impl::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_to_do_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// Asks the source for the next plan, once; false if it has none. An exception of the source, or a
// plan that does not fit, becomes a batch that has failed.
bool Loader::Impl::fetch_plan() {
  if (upcoming_) return true;
  if (source_ended_) return false;
  Upcoming upcoming;
  try {
    std::optional<MicroBatch> plan = source_();
    source_ended_ = !plan;
    if (!plan) {
      batch_done_.notify_all();
      return false;
    }
    const auto count = static_cast<int64_t>(plan->indices.size());
    CHECK_ARG(count >= 1 && count <= options_.max_batch, "loader: a batch of ", count,
              " images for buffers of ", options_.max_batch);
    for (const int64_t index : plan->indices) {
      CHECK_ARG(index >= 0 && index < data_.size(), "loader: image ", index, " of ", data_.size());
    }
    upcoming.plan = std::move(*plan);
  } catch (...) {
    upcoming.failure = std::current_exception();
    source_ended_ = true;
  }
  upcoming_ = std::move(upcoming);
  return true;
}

// Puts the next plan into its slot, if that is free and there is one.
bool Loader::Impl::open_batch() {
  Slot& slot = slot_of(opened_);
  if (slot.state != SlotState::free || !fetch_plan()) return false;
  slot.plan = std::move(upcoming_->plan);
  slot.failure = std::move(upcoming_->failure);
  upcoming_.reset();
  slot.failed_image = -1;
  slot.next_image = 0;
  slot.images_left = slot.count();
  slot.state = slot.failure ? SlotState::ready : SlotState::filling;
  ++opened_;
  if (slot.failure) batch_done_.notify_all();
  return true;
}

Loader::Impl::Task Loader::Impl::take_task() {
  for (int64_t batch = delivered_;; ++batch) {
    if (batch == opened_ && !open_batch()) return {};
    Slot& slot = slot_of(batch);
    if (slot.next_image >= slot.count()) continue;
    const int64_t begin = slot.next_image;
    slot.next_image = std::min(begin + grain_, slot.count());
    return {&slot, begin, slot.next_image};
  }
}

void Loader::Impl::finish(const Task& task, int64_t failed_image, std::exception_ptr failure) {
  Slot& slot = *task.slot;
  if (failure && (!slot.failure || failed_image < slot.failed_image)) {
    slot.failure = std::move(failure);
    slot.failed_image = failed_image;
    source_ended_ = true;  // nothing after a failed batch is delivered
  }
  slot.images_left -= task.end - task.begin;
  if (slot.images_left > 0) return;
  slot.state = SlotState::ready;
  batch_done_.notify_all();
}

// Reads the images of a task with the mutex released. Of a task only the first failure counts.
void Loader::Impl::run(const Task& task, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const Slot& slot = *task.slot;
  std::exception_ptr failure;
  int64_t image = task.begin;
  try {
    for (; image < task.end; ++image) {
      const int64_t index = slot.plan.indices[image];
      data_.read(index, pixels(slot) + image * data_.shape().bytes());
      labels(slot)[image] = data_.label(index);
      seeds(slot)[image] = augmentation_seed(options_.seed, slot.plan.epoch, index);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  finish(task, image, std::move(failure));
}

void Loader::Impl::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Task task = take_task();
    if (task.slot != nullptr) {
      run(task, lock);
    } else if (exhausted()) {
      return;  // every image has been taken
    } else {
      work_to_do_.wait(lock);
    }
  }
}

std::optional<Batch> Loader::Impl::next() {
  std::unique_lock lock(mutex_);
  if (thrown_) std::rethrow_exception(thrown_);
  Slot& slot = slot_of(delivered_);
  if (slot.state == SlotState::held) {
    CHECK_ARG(!fetch_plan(), "loader: next() would wait for ever: of ", slots_.size(),
              " slots the one of the next batch is still held, release it before");
    return std::nullopt;
  }
  const auto ready = [&] {
    return delivered_ < opened_ ? slot.state == SlotState::ready : exhausted();
  };
  if (workers_.empty()) {
    // Up to the batch that is asked for; take_task would go on to open later ones.
    if (delivered_ == opened_) open_batch();
    while (!ready()) run(take_task(), lock);
  } else {
    batch_done_.wait(lock, ready);
  }
  if (delivered_ == opened_) return std::nullopt;
  if (slot.failure) {
    thrown_ = slot.failure;
    std::rethrow_exception(thrown_);
  }
  slot.state = SlotState::held;
  ++delivered_;
  Batch batch;
  batch.count = slot.count();
  batch.plan = std::move(slot.plan);
  batch.pixels = pixels(slot);
  batch.labels = labels(slot);
  batch.augmentation_seeds = seeds(slot);
  batch.slot = &slot - slots_.data();
  return batch;
}

void Loader::Impl::release(const Batch& batch) {
  {
    const std::lock_guard lock(mutex_);
    CHECK_ARG(
        batch.slot >= 0 && batch.slot < static_cast<int64_t>(slots_.size()) &&
            slots_[batch.slot].state == SlotState::held &&
            slots_[batch.slot].buffer.get() == reinterpret_cast<const std::byte*>(batch.pixels),
        "loader: release of a batch that is not held (slot ", batch.slot, ")");
    slots_[batch.slot].state = SlotState::free;
  }
  work_to_do_.notify_all();
}

Loader::Loader(const Dataset& data, BatchSource source, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(data, std::move(source), options)) {}

Loader::~Loader() = default;

std::optional<Batch> Loader::next() { return impl_->next(); }

void Loader::release(const Batch& batch) { impl_->release(batch); }

int64_t Loader::slot_bytes() const { return impl_->slot_bytes(); }

}  // namespace headroom
