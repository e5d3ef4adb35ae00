// Draws the order of an epoch and cuts it into windows and micro-batches.
#include "train/data/sampler.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "core/base/count.h"
#include "core/base/error.h"
#include "core/base/philox.h"

namespace headroom {
namespace {

// Mixed into the seed, so that order, augmentation and the model's own draws are independent.
constexpr uint64_t kOrderKey = 0x6F72646572000001u;
constexpr uint64_t kAugmentationKey = 0x6175676D00000001u;

uint64_t half(const PhiloxWords& words, int64_t which) {
  return uint64_t{words.word[2 * which]} << 32 | words.word[2 * which + 1];
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The product, or the largest number where that is smaller.
int64_t saturated(int64_t a, int64_t b) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  return a > kLargest / b ? kLargest : a * b;
}

}  // namespace

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = size - 1; i > 0; --i) {
    const PhiloxWords words =
        philox(seed ^ kOrderKey, static_cast<uint64_t>(i / 2), static_cast<uint64_t>(epoch));
    // The high word of a 64 x 64 bit product: uniform on [0, i] to within i / 2^64.
    const auto product =
        static_cast<unsigned __int128>(half(words, i % 2)) * static_cast<unsigned __int128>(i + 1);
    std::swap(order[i], order[static_cast<int64_t>(product >> 64)]);
  }
  return order;
}

uint64_t augmentation_seed(uint64_t seed, int64_t epoch, int64_t index) {
  return half(
      philox(seed ^ kAugmentationKey, static_cast<uint64_t>(index), static_cast<uint64_t>(epoch)),
      0);
}

Sampler::Sampler(int64_t size, const SamplerOptions& options) : size_(size), options_(options) {
  CHECK_ARG(size >= 1, "sampler: the data set has no images");
  CHECK_ARG(options.batch >= 1, "sampler: batch must be 1 or more, got ", options.batch);
  CHECK_ARG(options.accum >= 1, "sampler: accum must be 1 or more, got ", options.accum);
  CHECK_ARG(options.window >= 0, "sampler: window must be 0 or more, got ", options.window);
  if (options_.window == 0) options_.window = saturated(options.batch, options.accum);
  CHECK_ARG(window_starts_at(0), "sampler: there are no batches: ", size,
            " images are fewer than batch ", options.batch, " x accum ", options.accum,
            ", and short windows are dropped");
}

bool Sampler::window_starts_at(int64_t position) const {
  return size_ - position >= (options_.drop_last ? options_.window : 1);
}

int64_t Sampler::windows_per_epoch() const {
  return options_.drop_last ? size_ / options_.window : ceil_div(size_, options_.window);
}

int64_t Sampler::batches_per_epoch() const {
  const int64_t full = size_ / options_.window, rest = size_ % options_.window;
  const int64_t of_rest = options_.drop_last ? 0 : ceil_div(rest, options_.batch);
  return full * ceil_div(options_.window, options_.batch) + of_rest;
}

void Sampler::normalise() {
  if (!window_starts_at(state_.position)) state_ = {state_.epoch + 1, 0};
}

void Sampler::order_epoch(int64_t epoch) {
  if (!options_.shuffle || ordered_epoch_ == epoch) return;
  order_ = epoch_order(size_, options_.seed, epoch);
  ordered_epoch_ = epoch;
}

std::vector<MicroBatch> Sampler::next_window() {
  const SamplerState start = state_;
  order_epoch(start.epoch);
  std::vector<MicroBatch> window;
  int64_t position = start.position;
  const int64_t end = position + std::min(options_.window, size_ - position);
  while (position < end) {
    const int64_t count = std::min(options_.batch, end - position);
    MicroBatch batch;
    batch.indices.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      batch.indices[i] = options_.shuffle ? order_[position + i] : position + i;
    }
    batch.epoch = start.epoch;
    batch.window = start.position / options_.window;
    batch.in_window = static_cast<int64_t>(window.size());
    window.push_back(std::move(batch));
    position += count;
  }
  state_.position = position;
  normalise();
  for (MicroBatch& batch : window) {
    batch.last_in_window = &batch == &window.back();
    batch.last_in_epoch = batch.last_in_window && state_.epoch != start.epoch;
    batch.window_images = position - start.position;
    batch.state_after_window = state_;
  }
  return window;
}

void Sampler::restore(const SamplerState& state) {
  CHECK_ARG(state.epoch >= 0 && state.epoch <= kMaxRestoredCount && state.position >= 0 &&
                state.position <= size_,
            "sampler: cannot resume at image ", state.position, " of epoch ", state.epoch, " of ",
            size_, " images");
  state_ = state;
  normalise();
}

BatchSource batch_source(Sampler sampler, int64_t windows) {
  struct Progress {
    Sampler sampler;
    int64_t windows_left;
    std::deque<MicroBatch> waiting;
  };
  auto progress = std::make_shared<Progress>(Progress{std::move(sampler), windows, {}});
  return [progress]() -> std::optional<MicroBatch> {
    if (progress->waiting.empty()) {
      if (progress->windows_left <= 0) return std::nullopt;
      --progress->windows_left;
      for (MicroBatch& batch : progress->sampler.next_window()) {
        progress->waiting.push_back(std::move(batch));
      }
    }
    MicroBatch batch = std::move(progress->waiting.front());
    progress->waiting.pop_front();
    return batch;
  };
}

}  // namespace headroom
