// Device input: two stages that take turns.
#include "train/input.h"

#include <optional>

#include "core/base/philox.h"
#include "core/ops/contract.h"

namespace headroom {
namespace {

constexpr int64_t kCropPadding = 4;  // pixels on each side, as CIFAR recipes have it

// Shift of rows and columns in [-4, 4] and mirror, from the image's own seed.
void draw_offsets(uint64_t seed, const InputOptions& options, int64_t* out) {
  const PhiloxWords words = philox(seed, 0, 0);
  constexpr uint32_t kShifts = 2 * kCropPadding + 1;
  out[0] = options.crop ? static_cast<int64_t>(words.word[0] % kShifts) - kCropPadding : 0;
  out[1] = options.crop ? static_cast<int64_t>(words.word[1] % kShifts) - kCropPadding : 0;
  out[2] = options.flip ? words.word[2] >> 31 : 0;
}

// Host memory of a device's runtime.
class HostArray {
 public:
  HostArray(DeviceRuntime& runtime, int64_t count)
      : runtime_(&runtime), memory_(runtime.host_acquire(count * int64_t{sizeof(int64_t)})) {}
  ~HostArray() { runtime_->host_release(memory_); }
  HostArray(const HostArray&) = delete;
  HostArray& operator=(const HostArray&) = delete;
  int64_t* data() const { return static_cast<int64_t*>(memory_); }

 private:
  DeviceRuntime* runtime_;
  void* memory_;
};

class Event {
 public:
  explicit Event(DeviceRuntime& runtime) : runtime_(&runtime), handle_(runtime.create_event()) {}
  ~Event() { runtime_->destroy_event(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  EventHandle handle() const { return handle_; }

 private:
  DeviceRuntime* runtime_;
  EventHandle handle_;
};

// The first `count` rows of a staging tensor.
Tensor rows(const Tensor& t, int64_t count) {
  Shape shape = t.shape();
  shape[0] = count;
  return detail::alias(t, t.storage_offset(), shape, t.strides(), t.format());
}

// An i64 tensor [n] as bytes [n, 8].
Tensor as_bytes(const Tensor& t) {
  constexpr int64_t kWidth = sizeof(int64_t);
  return Tensor::make(t.storage(), t.storage_offset() * kWidth, {t.size(0), kWidth}, {kWidth, 1},
                      DType::u8, MemoryFormat::contiguous);
}

}  // namespace

struct DeviceInput::Impl {
  // What one micro-batch needs on its way; two of them alternate.
  struct Stage {
    explicit Stage(DeviceRuntime& runtime) : copied(runtime), free(runtime) {}
    Tensor pixels, labels, offsets, indices;
    std::unique_ptr<HostArray> host_offsets, host_indices;
    Event copied, free;
    std::optional<Batch> batch;  // the loader's buffer that the copy reads
    MicroBatch plan;
    int64_t count = 0;
    bool filled = false;
  };

  const Dataset& data;
  BatchSource source;
  InputOptions options;
  DeviceRuntime& runtime;
  Tensor mean, deviation;
  Tensor table, label_table;  // resident set
  std::array<std::unique_ptr<Stage>, 2> stages;
  std::unique_ptr<Loader> loader;
  size_t turn = 0;

  Impl(const Dataset& data, BatchSource source_in, const InputOptions& options)
      : data(data),
        source(std::move(source_in)),
        options(options),
        runtime(runtime_of(options.device)) {
    const TagScope tag(Tag::input);
    const ImageShape& shape = data.shape();
    mean = from_vector(data.info().mean, {shape.channels}, {DType::f32, options.device});
    deviation = from_vector(data.info().std, {shape.channels}, {DType::f32, options.device});
    if (options.resident) upload_set();
    for (auto& stage : stages) make_stage(stage);
    if (!options.resident) start_loader();
  }

  ~Impl() {
    // Copies in flight read the ring and write the stages.
    try {
      runtime.synchronize();
    } catch (const std::exception&) {
      // A failed device is reported by whoever waits for it next; here memory is only given back.
    }
  }

  bool augments() const { return options.crop || options.flip; }

  void upload_set() {
    const DatasetBytes bytes = read_all(data);
    const ImageShape& shape = data.shape();
    table = from_vector(bytes.pixels, {data.size(), shape.bytes()}, {DType::u8, options.device});
    label_table = from_vector(bytes.labels, {data.size()}, {DType::i64, options.device});
    runtime.synchronize();
  }

  void make_stage(std::unique_ptr<Stage>& stage) {
    stage = std::make_unique<Stage>(runtime);
    const ImageShape& shape = data.shape();
    const int64_t n = options.max_batch;
    const TensorOptions wide{DType::i64, options.device};
    stage->pixels =
        empty({n, shape.height, shape.width, shape.channels}, {DType::u8, options.device});
    stage->labels = empty({n}, wide);
    if (augments()) {
      stage->offsets = empty({n, 3}, wide);
      stage->host_offsets = std::make_unique<HostArray>(runtime, 3 * n);
    }
    if (options.resident) {
      stage->indices = empty({n}, wide);
      stage->host_indices = std::make_unique<HostArray>(runtime, n);
    }
    runtime.record_event(stage->copied.handle(), Stream::copy);
    runtime.record_event(stage->free.handle(), Stream::compute);
  }

  void start_loader() {
    LoaderOptions ring;
    ring.threads = options.threads;
    ring.slots = std::max<int64_t>(4, options.threads + 2);
    ring.max_batch = options.max_batch;
    ring.seed = options.seed;
    DeviceRuntime* from = &runtime;
    ring.make_buffer = [from](int64_t bytes) {
      return HostBuffer(static_cast<std::byte*>(from->host_acquire(bytes)),
                        [from](std::byte* memory) { from->host_release(memory); });
    };
    loader = std::make_unique<Loader>(data, source, ring);
  }

  // Queues the copies of the next micro-batch into a stage. The compute stream has queued all work
  // that reads what lies there now.
  void fill(Stage& stage) {
    runtime.synchronize_event(stage.copied.handle());
    if (stage.batch) loader->release(*stage.batch);
    stage.batch.reset();
    stage.filled = options.resident ? fill_from_table(stage) : fill_from_loader(stage);
  }

  void begin_copies(Stage& stage) {
    runtime.record_event(stage.free.handle(), Stream::compute);
    runtime.wait_event(stage.free.handle(), Stream::copy);
  }

  void copy_in(const Tensor& to, const void* from, int64_t bytes) {
    runtime.copy_to_device(to.view().data, from, bytes, Stream::copy);
  }

  void copy_offsets(Stage& stage, const std::function<uint64_t(int64_t)>& seed_of) {
    if (!augments()) return;
    for (int64_t i = 0; i < stage.count; ++i) {
      draw_offsets(seed_of(i), options, stage.host_offsets->data() + 3 * i);
    }
    copy_in(stage.offsets, stage.host_offsets->data(), stage.count * 3 * int64_t{sizeof(int64_t)});
  }

  bool fill_from_loader(Stage& stage) {
    stage.batch = loader->next();
    if (!stage.batch) return false;
    const Batch& batch = *stage.batch;
    stage.plan = batch.plan;
    stage.count = batch.count;
    begin_copies(stage);
    copy_in(stage.pixels, batch.pixels, batch.count * data.shape().bytes());
    copy_in(stage.labels, batch.labels, batch.count * int64_t{sizeof(int64_t)});
    copy_offsets(stage, [&](int64_t i) { return batch.augmentation_seeds[i]; });
    runtime.record_event(stage.copied.handle(), Stream::copy);
    return true;
  }

  bool fill_from_table(Stage& stage) {
    std::optional<MicroBatch> plan = source();
    if (!plan) return false;
    stage.plan = std::move(*plan);
    stage.count = static_cast<int64_t>(stage.plan.indices.size());
    std::copy(stage.plan.indices.begin(), stage.plan.indices.end(), stage.host_indices->data());
    begin_copies(stage);
    copy_in(stage.indices, stage.host_indices->data(), stage.count * int64_t{sizeof(int64_t)});
    copy_offsets(stage, [&](int64_t i) {
      return augmentation_seed(options.seed, stage.plan.epoch,
                               stage.plan.indices[static_cast<size_t>(i)]);
    });
    runtime.record_event(stage.copied.handle(), Stream::copy);
    return true;
  }

  std::optional<InputBatch> next() {
    Stage& now = *stages[turn % 2];
    if (turn == 0) fill(now);
    ++turn;
    if (!now.filled) return std::nullopt;
    fill(*stages[turn % 2]);  // while the step of `now` computes
    runtime.wait_event(now.copied.handle(), Stream::compute);
    const OpScope op("input");
    const TagScope tag(Tag::input);
    const ImageShape& shape = data.shape();
    const Tensor pixels = rows(now.pixels, now.count), labels = rows(now.labels, now.count);
    if (options.resident) {
      const Tensor indices = rows(now.indices, now.count);
      const Tensor flat = detail::alias(pixels, 0, {now.count, shape.bytes()}, {shape.bytes(), 1},
                                        MemoryFormat::contiguous);
      slots::gather_rows(table, indices, flat);
      slots::gather_rows(as_bytes(label_table), indices, as_bytes(labels));
    }
    InputBatch out;
    out.images = empty({now.count, shape.channels, shape.height, shape.width},
                       {options.dtype, options.device, options.layout});
    slots::normalize_images(pixels, augments() ? rows(now.offsets, now.count).view() : View{}, mean,
                            deviation, out.images);
    out.labels = labels;
    out.plan = now.plan;
    out.count = now.count;
    return out;
  }
};

DeviceInput::DeviceInput(const Dataset& data, BatchSource source, const InputOptions& options)
    : impl_(std::make_unique<Impl>(data, std::move(source), options)) {}
DeviceInput::~DeviceInput() = default;

std::optional<InputBatch> DeviceInput::next() {
  // Waiting for images is a phase of a trace, though no block is charged to it.
  const RangeScope range(RangeKind::phase, "input");
  return impl_->next();
}

}  // namespace headroom
