// Copies to the host and back: one list of them per device, in the order that backward undoes.
#include "core/autograd/offload.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/per_device.h"
#include "core/memory/caching_allocator.h"

namespace headroom::detail {
namespace {

class Offloader;

}  // namespace

// The bytes of one storage on the host. Made and changed under its offloader's lock.
class HostCopy : public std::enable_shared_from_this<HostCopy> {
 public:
  // Makes room on the host. Throws OutOfMemory.
  HostCopy(Offloader& offloader, const std::shared_ptr<Storage>& storage);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  bool is_on_device() const { return resident || !original.expired(); }

  Offloader& offloader;
  const Storage* const key;  // the original's address, also when it is gone
  const std::weak_ptr<Storage> original;
  const std::shared_ptr<const int64_t> current_version;
  const int64_t version, bytes;
  const PathId path;                  // of the module that the original is charged to
  std::shared_ptr<Storage> leaving;   // the original, while its copy is under way
  std::shared_ptr<Storage> resident;  // brought back
  bool is_awaited = false;  // whether the compute stream waits for what brings `resident` back
  Block* host = nullptr;
  EventHandle done = nullptr;  // after the latest copy, either way
  std::list<HostCopy*>::iterator place;
};

namespace {

// A failed device is reported by whoever waits for it next; a destructor only gives back.
template <class Call>
void quietly(const Call& call) noexcept {
  try {
    call();
  } catch (const std::exception&) {
  }
}

// The copies of one device. The lock is recursive: where a call lets go of the last handle of a
// copy, that is retired inside it.
//
// Streams: whatever touches a host block runs on the copy stream, so blocks of the host's allocator
// are reused in order without anybody waiting. Blocks of the device are the compute stream's, which
// waits for a copy before the block that it reads or fills is used or comes free; the copy stream
// waits for the compute stream before each copy, since until then that may use the block.
class Offloader {
 public:
  explicit Offloader(Device device)
      : device_(device), host_(host_allocator_of(device)), reached_(runtime().create_event()) {}

  std::shared_ptr<HostCopy> take(const std::shared_ptr<Storage>& storage) {
    const std::lock_guard lock(mutex_);
    if (std::shared_ptr<HostCopy> known = find(storage)) {
      order_.splice(order_.end(), order_, known->place);
      return known;
    }
    if (storage->is_saved()) return nullptr;
    auto copy = std::make_shared<HostCopy>(*this, storage);
    if (leaving_.size() == kOffloadWindow) let_go(*leaving_.front());
    by_storage_[storage.get()] = copy.get();
    leaving_.push_back(copy.get());
    copy->leaving = storage;
    storage->begin_saved();
    follow_compute();
    runtime().queue_copy_to_host(copy->host->address, storage->data(), copy->bytes, Stream::copy);
    runtime().record_event(copy->done, Stream::copy);
    return copy;
  }

  std::shared_ptr<Storage> bring_back(HostCopy& copy) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Storage> storage = copy.original.lock();
    if (!storage) {
      if (!copy.resident) load(copy);
      if (!copy.is_awaited) runtime().wait_event(copy.done, Stream::compute);
      copy.is_awaited = true;
      storage = copy.resident;
    }
    prefetch_before(copy);
    return storage;
  }

  void leave_device(HostCopy& copy) {
    const std::lock_guard lock(mutex_);
    drop_resident(copy);
  }

  void end_prefetch() {
    const std::lock_guard lock(mutex_);
    for (auto at = order_.begin(); residents_ > 0 && at != order_.end(); ++at) {
      quietly([&] { drop_resident(**at); });
    }
  }

  // For the constructor of a copy, inside take(), and its destructor.
  void enlist(HostCopy& copy) {
    const TagScope tag(Tag::saved_activation);
    if (spare_events_.empty()) {
      spare_events_.reserve(++events_);  // so that retire() cannot fail
      spare_events_.push_back(runtime().create_event());
    }
    copy.place = order_.insert(order_.end(), &copy);
    try {
      copy.host = host_.allocate(copy.bytes);
    } catch (...) {
      order_.erase(copy.place);
      throw;
    }
    copy.done = spare_events_.back();
    spare_events_.pop_back();
  }
  void retire(HostCopy& copy) noexcept {
    const std::lock_guard lock(mutex_);
    quietly([&] {
      if (copy.leaving) let_go(copy);
    });
    quietly([&] { drop_resident(copy); });
    const auto known = by_storage_.find(copy.key);
    if (known != by_storage_.end() && known->second == &copy) by_storage_.erase(known);
    order_.erase(copy.place);
    host_.free(copy.host);
    spare_events_.push_back(copy.done);
  }

 private:
  DeviceRuntime& runtime() const { return runtime_of(device_); }

  // The copy that holds the storage's present contents.
  std::shared_ptr<HostCopy> find(const std::shared_ptr<Storage>& storage) const {
    const auto known = by_storage_.find(storage.get());
    if (known == by_storage_.end()) return nullptr;
    const HostCopy& copy = *known->second;
    // Another storage may have had the address before.
    if (copy.original.lock() != storage || copy.version != storage->version()) return nullptr;
    return known->second->weak_from_this().lock();
  }

  // What is queued on the copy stream from now on comes after what the compute stream has so far.
  void follow_compute() {
    runtime().record_event(reached_, Stream::compute);
    runtime().wait_event(reached_, Stream::copy);
  }

  void let_go(HostCopy& copy) {
    leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &copy));
    const std::shared_ptr<Storage> storage = std::move(copy.leaving);
    storage->end_saved();
    runtime().wait_event(copy.done, Stream::compute);
  }

  void load(HostCopy& copy) {
    std::shared_ptr<Storage> storage;
    {
      const TagScope tag(Tag::temporary);
      const PathScope path(copy.path);
      const OpScope op("offload");
      storage = std::make_shared<Storage>(device_, copy.bytes);
    }
    follow_compute();
    runtime().copy_to_device(storage->data(), copy.host->address, copy.bytes, Stream::copy);
    runtime().record_event(copy.done, Stream::copy);
    storage->begin_saved();
    copy.resident = std::move(storage);
    copy.is_awaited = false;
    ++residents_;
  }

  void drop_resident(HostCopy& copy) {
    if (!copy.resident) return;
    --residents_;
    const std::shared_ptr<Storage> storage = std::move(copy.resident);
    storage->end_saved();
    if (!copy.is_awaited) runtime().wait_event(copy.done, Stream::compute);
  }

  // Those that backward needs next. One for which there is no room comes when it is needed.
  void prefetch_before(const HostCopy& copy) {
    auto at = copy.place;
    try {
      for (int ahead = 0; ahead < kOffloadWindow && at != order_.begin(); ++ahead) {
        HostCopy& next = **--at;
        if (!next.is_on_device()) load(next);
      }
    } catch (const OutOfMemory&) {
    }
  }

  const Device device_;
  CachingAllocator& host_;
  std::recursive_mutex mutex_;
  std::list<HostCopy*> order_;     // by the latest time that a node saved it
  std::deque<HostCopy*> leaving_;  // at most kOffloadWindow
  int64_t residents_ = 0;
  std::unordered_map<const Storage*, HostCopy*> by_storage_;
  const EventHandle reached_;
  std::vector<EventHandle> spare_events_;
  size_t events_ = 0;
};

PerDevice<Offloader>& offloaders() {
  static PerDevice<Offloader> made;
  return made;
}

// Whether the bytes come free when the program goes on; what a saved tensor keeps already is
// offload()'s to find out.
bool is_worth_it(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  const bool is_activation =
      storage.tag() == Tag::temporary || storage.tag() == Tag::saved_activation;
  return storage.bytes() >= kOffloadMinBytes && is_activation && !tensor.leaf();
}

}  // namespace

HostCopy::HostCopy(Offloader& offloader, const std::shared_ptr<Storage>& storage)
    : offloader(offloader),
      key(storage.get()),
      original(storage),
      current_version(storage->version_counter()),
      version(storage->version()),
      bytes(storage->bytes()),
      path(storage->path()) {
  offloader.enlist(*this);
}

HostCopy::~HostCopy() { offloader.retire(*this); }

OffloadedTensor::OffloadedTensor(std::shared_ptr<HostCopy> copy, const Tensor& like)
    : copy_(std::move(copy)),
      offset_(like.storage_offset()),
      shape_(like.shape()),
      strides_(like.strides()),
      dtype_(like.dtype()),
      format_(like.format()),
      is_view_(like.impl()->is_view) {}

OffloadedTensor::~OffloadedTensor() = default;

Tensor OffloadedTensor::bring_back() const {
  Tensor out =
      Tensor::make(copy_->offloader.bring_back(*copy_), offset_, shape_, strides_, dtype_, format_);
  out.impl()->is_view = is_view_;
  return out;
}

void OffloadedTensor::leave_device() { copy_->offloader.leave_device(*copy_); }

int64_t OffloadedTensor::version() const { return *copy_->current_version; }

std::string OffloadedTensor::describe() const {
  View view;
  view.shape = shape_;
  view.dtype = dtype_;
  view.format = format_;
  view.defined = true;
  return headroom::describe(view);
}

std::unique_ptr<OffloadedTensor> offload(const Tensor& tensor) {
  if (!is_worth_it(tensor)) return nullptr;
  const Device device = tensor.device();
  Offloader& offloader = offloaders().of(device, [&] { return new Offloader(device); });
  std::shared_ptr<HostCopy> copy = offloader.take(tensor.storage());
  return copy ? std::make_unique<OffloadedTensor>(std::move(copy), tensor) : nullptr;
}

void end_prefetch() {
  offloaders().for_each_made([](Offloader& offloader) { offloader.end_prefetch(); });
}

}  // namespace headroom::detail
