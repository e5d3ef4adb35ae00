// Random fills and dropout. Element i of a draw is a function of (seed, offset, i) with i the
// logical row-major index, so neither layout nor threads change what is drawn.
#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

// The generator's state for one op.
struct Draw {
  uint64_t seed;
  uint64_t offset;
};

// words[j] = the word of element first + j * step.
void philox_run(const Draw& draw, uint64_t first, uint64_t step, int64_t count, uint32_t* words) {
  int64_t done = 0;
  if (step == 1) {
    while (done < count && (first + done) % 4 != 0) {
      words[done] = philox_word(draw.seed, draw.offset, first + done);
      ++done;
    }
    const uint64_t group = (first + done) / 4;
    const int64_t groups = (count - done) / 4;
    uint32_t* out = words + done;
    for (int64_t i = 0; i < groups; ++i) {
      const PhiloxWords four = philox(draw.seed, group + i, draw.offset);
      for (int j = 0; j < 4; ++j) out[4 * i + j] = four.word[j];
    }
    done += 4 * groups;
  }
  for (; done < count; ++done) {
    words[done] = philox_word(draw.seed, draw.offset, first + done * step);
  }
}

// The words of the elements [begin, begin + count) of a loop whose operand `index` came from
// logical_index_view().
void draw_words(const Draw& draw, const Operand& index, int64_t begin, int64_t count,
                uint32_t* words) {
  for_each_run(index, begin, count, [&](int64_t first, int64_t step, int64_t run) {
    philox_run(draw, static_cast<uint64_t>(first), static_cast<uint64_t>(step), run, words);
    words += run;
  });
}

void fill_uniform(uint64_t seed, uint64_t offset, double low, double high, const View& y) {
  const Loop loop = plan_loop(y.shape, {logical_index_view(y.shape), y});
  const Draw draw{seed, offset};
  dispatch_floating(y.dtype, "fill_uniform", [&](auto tag) {
    using T = decltype(tag);
    parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
      uint32_t words[kChunk];
      T values[kChunk];
      draw_words(draw, loop.operand[0], begin, count, words);
      for (int64_t i = 0; i < count; ++i) {
        const T value = convert_element<T>(uniform_draw(words[i], low, high));
        values[i] = convert_element<double>(value) < high ? value : convert_element<T>(low);
      }
      scatter<T>(loop.operand[1], begin, count, values);
    });
  });
}

void fill_normal(uint64_t seed, uint64_t offset, double mean, double deviation, const View& y) {
  const Loop loop = plan_loop(y.shape, {logical_index_view(y.shape), y});
  dispatch_floating(y.dtype, "fill_normal", [&](auto tag) {
    using T = decltype(tag);
    parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
      T values[kChunk];
      T* out = values;
      // Neighbours share a pair of words, so the last pair is kept.
      uint64_t pair = UINT64_MAX;
      NormalPair normal{};
      for_each_run(loop.operand[0], begin, count, [&](int64_t first, int64_t step, int64_t run) {
        for (int64_t i = 0; i < run; ++i) {
          const uint64_t element = static_cast<uint64_t>(first + i * step);
          if (element / 2 != pair) {
            pair = element / 2;
            const PhiloxWords four = philox(seed, element / 4, offset);
            const int even = static_cast<int>(pair % 2) * 2;
            normal = normal_draw(four.word[even], four.word[even + 1]);
          }
          const double z = element % 2 == 0 ? normal.cosine : normal.sine;
          *out++ = convert_element<T>(mean + deviation * z);
        }
      });
      scatter<T>(loop.operand[1], begin, count, values);
    });
  });
}

void dropout(double p, uint64_t seed, uint64_t offset, const View& x, const View& y) {
  const Loop loop = plan_loop(y.shape, {logical_index_view(y.shape), x, y});
  const Draw draw{seed, offset};
  const uint32_t threshold = dropout_threshold(p);
  dispatch_compute({x.dtype, y.dtype}, [&](auto tag) {
    using C = decltype(tag);
    const C scale = static_cast<C>(dropout_scale(p));
    parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
      uint32_t words[kChunk];
      C x_buffer[kChunk], y_buffer[kChunk];
      draw_words(draw, loop.operand[0], begin, count, words);
      const C* from = load(loop.operand[1], begin, count, x_buffer);
      C* to = store_target(loop.operand[2], begin, y_buffer);
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        to[i] = dropout_keeps(words[i], threshold) ? from[i] * scale : C(0);
      }
      store(loop.operand[2], begin, count, to);
    });
  });
}

}  // namespace

void register_cpu_random_kernels() {
  slots::fill_uniform.set(DeviceType::cpu, &fill_uniform);
  slots::fill_normal.set(DeviceType::cpu, &fill_normal);
  slots::dropout.set(DeviceType::cpu, &dropout);
}

}  // namespace headroom
