// The inner product of the native convolutions: tiles of two operands in shared memory, filled in
// several stages by asynchronous copies, multiplied on tensor cores (f16, bf16, TF32) or in plain
// f32. Included by conv_native_*.cu only.
#pragma once

#include <type_traits>

#include "kernels/cuda/cuda_common.h"

namespace headroom::cuda {

enum class ConvMath { tensor_half, tensor_tf32, fused_f32 };

// How a tile lies: [row or column of the result][k], or [k][row or column].
enum class TileOrder { k_inner, k_outer };

// kRows x kColumns of the result per block, in kWarpRows x kWarpColumns warps. kWide: 16-byte
// copies; else single elements.
template <class T, ConvMath kMathIn, int kRowsIn, int kColumnsIn, int kWarpRowsIn,
          int kWarpColumnsIn, bool kWideIn>
struct TileConfig {
  using Element = T;
  static constexpr ConvMath kMath = kMathIn;
  static constexpr int kRows = kRowsIn, kColumns = kColumnsIn;
  static constexpr int kWarpRows = kWarpRowsIn, kWarpColumns = kWarpColumnsIn;
  static constexpr int kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr bool kWide = kWideIn;
  static constexpr int kVector = kWide ? 16 / static_cast<int>(sizeof(T)) : 1;
  static constexpr int kDepth = 64 / static_cast<int>(sizeof(T));  // of k in one slab
  static constexpr int kStages = 4;
};

// Extents of one operand's tile. Rows are padded so that the eight rows (or the 4 x 8 words) that
// a warp reads at once fall into different banks.
template <class Config, TileOrder kOrderIn, int kExtentIn>
struct TileLayout {
  using T = typename Config::Element;
  static constexpr TileOrder kOrder = kOrderIn;
  static constexpr int kExtent = kExtentIn;
  static constexpr bool kInner = kOrder == TileOrder::k_inner;
  static constexpr int kLines = kInner ? kExtent : Config::kDepth;
  static constexpr int kLine = kInner ? Config::kDepth : kExtent;
  static constexpr int kPadding = kInner ? 16 / static_cast<int>(sizeof(T)) : 8;
  static constexpr int kPitch = kLine + kPadding;
  static constexpr int kElements = kLines * kPitch;
  // A thread copies one vector of every kLineStep-th line.
  static constexpr int kVectorsPerLine = kLine / Config::kVector;
  static constexpr int kLineStep = Config::kThreads / kVectorsPerLine;
  static constexpr int kCopies = kLines / kLineStep;
  static_assert(Config::kThreads % kVectorsPerLine == 0 && kLines % kLineStep == 0);

  __device__ static int first_line() { return static_cast<int>(threadIdx.x) / kVectorsPerLine; }
  // Place along the line, in elements.
  __device__ static int place() {
    return static_cast<int>(threadIdx.x) % kVectorsPerLine * Config::kVector;
  }
};

// ---- copies into shared memory ----

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// One vector, or zeros where `valid` is false; nothing is read there, but `from` must be a number.
template <class Config>
__device__ __forceinline__ void copy_vector(typename Config::Element* to,
                                            const typename Config::Element* from, bool valid) {
  if constexpr (Config::kWide) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    *to = valid ? *from : from_float<typename Config::Element>(0.0f);
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// ---- fragments ----

__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// m16n8k8 on TF32.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1, float) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(value));
  return bits;
}

// ---- products of one slab ----

// What a thread holds of the result. multiply() adds a slab; for_each(fn) then calls fn(row,
// column, value, value of the next column) or fn(row, column, value) for all of it.
template <class Config, class A, class B, ConvMath kMath = Config::kMath>
class TileProduct;

// The two tensor core kinds share the shape of the result: 16 x 8 per instruction.
template <class Config>
class TensorResult {
 public:
  static constexpr int kTileRows = Config::kRows / Config::kWarpRows;
  static constexpr int kTileColumns = Config::kColumns / Config::kWarpColumns;
  static constexpr int kDown = kTileRows / 16, kAcross = kTileColumns / 8;

  __device__ __forceinline__ TensorResult() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
    first_row = warp / Config::kWarpColumns * kTileRows;
    first_column = warp % Config::kWarpColumns * kTileColumns;
  }

  template <class Fn>
  __device__ __forceinline__ void for_each(Fn&& fn) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int row = first_row + i * 16 + lane / 4;
        const int column = first_column + j * 8 + lane % 4 * 2;
        fn(row, column, sum[i][j][0], sum[i][j][1]);
        fn(row + 8, column, sum[i][j][2], sum[i][j][3]);
      }
    }
  }

 protected:
  int lane, first_row, first_column;
  float sum[kDown][kAcross][4] = {};
};

template <class Config, class A, class B>
class TileProduct<Config, A, B, ConvMath::tensor_half> : public TensorResult<Config> {
  using Base = TensorResult<Config>;
  using T = typename Config::Element;

 public:
  __device__ __forceinline__ void multiply(const T* a, const T* b) {
#pragma unroll
    for (int k = 0; k < Config::kDepth; k += 16) {
      uint32_t left[Base::kDown][4], right[Base::kAcross / 2][4];
#pragma unroll
      for (int i = 0; i < Base::kDown; ++i) load_left(left[i], a, this->first_row + i * 16, k);
#pragma unroll
      for (int j = 0; j < Base::kAcross / 2; ++j) {
        load_right(right[j], b, this->first_column + j * 16, k);
      }
#pragma unroll
      for (int i = 0; i < Base::kDown; ++i) {
#pragma unroll
        for (int j = 0; j < Base::kAcross; ++j) {
          multiply_add(this->sum[i][j], left[i], right[j / 2][j % 2 * 2],
                       right[j / 2][j % 2 * 2 + 1], T{});
        }
      }
    }
  }

 private:
  // 16 rows x 16 of k: four 8 x 8 matrices in the order rows 0-7, rows 8-15, then the same at k
  // + 8.
  __device__ __forceinline__ void load_left(uint32_t (&out)[4], const T* a, int row, int k) const {
    const int lane = this->lane;
    if constexpr (A::kInner) {
      load_matrices(out, a + (row + lane % 16) * A::kPitch + k + lane / 16 * 8);
    } else {
      load_matrices_transposed(
          out, a + (k + lane / 16 * 8 + lane % 8) * A::kPitch + row + lane / 8 % 2 * 8);
    }
  }
  // 16 of k x 16 columns: columns 0-7 at k and k + 8, then columns 8-15.
  __device__ __forceinline__ void load_right(uint32_t (&out)[4], const T* b, int column,
                                             int k) const {
    const int lane = this->lane;
    if constexpr (B::kInner) {
      load_matrices(out,
                    b + (column + lane / 16 * 8 + lane % 8) * B::kPitch + k + lane / 8 % 2 * 8);
    } else {
      load_matrices_transposed(
          out, b + (k + lane / 8 % 2 * 8 + lane % 8) * B::kPitch + column + lane / 16 * 8);
    }
  }
};

template <class Config, class A, class B>
class TileProduct<Config, A, B, ConvMath::tensor_tf32> : public TensorResult<Config> {
  using Base = TensorResult<Config>;

 public:
  __device__ __forceinline__ void multiply(const float* a, const float* b) {
    const int line = this->lane / 4, place = this->lane % 4;
#pragma unroll
    for (int k = 0; k < Config::kDepth; k += 8) {
      uint32_t left[Base::kDown][4], right[Base::kAcross][2];
#pragma unroll
      for (int i = 0; i < Base::kDown; ++i) {
        const int row = this->first_row + i * 16 + line;
        left[i][0] = at<A>(a, row, k + place);
        left[i][1] = at<A>(a, row + 8, k + place);
        left[i][2] = at<A>(a, row, k + place + 4);
        left[i][3] = at<A>(a, row + 8, k + place + 4);
      }
#pragma unroll
      for (int j = 0; j < Base::kAcross; ++j) {
        const int column = this->first_column + j * 8 + line;
        right[j][0] = at<B>(b, column, k + place);
        right[j][1] = at<B>(b, column, k + place + 4);
      }
#pragma unroll
      for (int i = 0; i < Base::kDown; ++i) {
#pragma unroll
        for (int j = 0; j < Base::kAcross; ++j) {
          multiply_add(this->sum[i][j], left[i], right[j][0], right[j][1], float{});
        }
      }
    }
  }

 private:
  template <class Layout>
  __device__ __forceinline__ static uint32_t at(const float* tile, int line, int k) {
    return to_tf32(tile[Layout::kInner ? line * Layout::kPitch + k : k * Layout::kPitch + line]);
  }
};

// Strict f32: each thread owns kDown x kAcross results and reads four of k at a time.
template <class Config, class A, class B>
class TileProduct<Config, A, B, ConvMath::fused_f32> {
  static constexpr int kDown = 8;
  static constexpr int kAcross = Config::kRows * Config::kColumns / (Config::kThreads * kDown);
  static constexpr int kLanesDown = Config::kRows / kDown;
  static constexpr int kLanesAcross = Config::kColumns / kAcross;
  static_assert(kLanesDown * kLanesAcross == Config::kThreads && kAcross % 4 == 0);

 public:
  __device__ __forceinline__ TileProduct()
      : down(static_cast<int>(threadIdx.x) / kLanesAcross),
        across(static_cast<int>(threadIdx.x) % kLanesAcross) {}

  __device__ __forceinline__ void multiply(const float* a, const float* b) {
#pragma unroll
    for (int k = 0; k < Config::kDepth; k += 4) {
      float right[kAcross / 4][4][4];
#pragma unroll
      for (int j = 0; j < kAcross / 4; ++j) {
        load_four<B, kLanesAcross>(right[j], b, across, j, k);
      }
#pragma unroll
      for (int i = 0; i < kDown / 4; ++i) {
        float left[4][4];
        load_four<A, kLanesDown>(left, a, down, i, k);
#pragma unroll
        for (int depth = 0; depth < 4; ++depth) {
#pragma unroll
          for (int x = 0; x < 4; ++x) {
#pragma unroll
            for (int j = 0; j < kAcross; ++j) {
              sum[i * 4 + x][j] =
                  fmaf(left[x][depth], right[j / 4][j % 4][depth], sum[i * 4 + x][j]);
            }
          }
        }
      }
    }
  }

  template <class Fn>
  __device__ __forceinline__ void for_each(Fn&& fn) const {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        fn(line_of<A, kLanesDown>(down, i), line_of<B, kLanesAcross>(across, j), sum[i][j]);
      }
    }
  }

 private:
  // The i-th line of a thread: neighbours in fours where they are read in fours (k outer), else
  // every kLanes-th, so that the threads of a warp read neighbouring lines.
  template <class Layout, int kLanes>
  __device__ __forceinline__ static int line_of(int lane, int i) {
    return Layout::kInner ? lane + i * kLanes : lane * 4 + i % 4 + i / 4 * kLanes * 4;
  }
  // Lines 4 * quad .. + 3 at k .. k + 3, as out[line][k].
  template <class Layout, int kLanes>
  __device__ __forceinline__ static void load_four(float (&out)[4][4], const float* tile, int lane,
                                                   int quad, int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Layout::kInner) {
        const float4 four = *reinterpret_cast<const float4*>(
            tile + line_of<Layout, kLanes>(lane, quad * 4 + i) * Layout::kPitch + k);
        out[i][0] = four.x;
        out[i][1] = four.y;
        out[i][2] = four.z;
        out[i][3] = four.w;
      } else {
        const float4 four = *reinterpret_cast<const float4*>(
            tile + (k + i) * Layout::kPitch + line_of<Layout, kLanes>(lane, quad * 4));
        out[0][i] = four.x;
        out[1][i] = four.y;
        out[2][i] = four.z;
        out[3][i] = four.w;
      }
    }
  }

  int down, across;
  float sum[kDown][kAcross] = {};
};

// Runs the stages: issue(slot) starts the copies of the next slab into a slot (it is called in
// order of slabs), prepare() is what the slab after that needs in shared memory. One barrier per
// slab: past it, the slab has arrived for everyone and everyone has left the slot filled next.
template <class Config, class Product, class T, class Issue, class Prepare>
__device__ __forceinline__ void run_slabs(Product& product, int64_t slabs, T* a, int a_elements,
                                          T* b, int b_elements, Issue&& issue, Prepare&& prepare) {
  constexpr int kAhead = Config::kStages - 1;
  prepare();
#pragma unroll
  for (int slab = 0; slab < kAhead; ++slab) {
    __syncthreads();
    if (slab < slabs) issue(slab);
    commit_copies();
    prepare();
  }
  int slot = 0, next = kAhead;
  for (int64_t slab = 0; slab < slabs; ++slab) {
    wait_copies<kAhead - 1>();
    __syncthreads();
    if (slab + kAhead < slabs) issue(next);
    commit_copies();
    prepare();
    product.multiply(a + slot * a_elements, b + slot * b_elements);
    slot = slot + 1 == Config::kStages ? 0 : slot + 1;
    next = next + 1 == Config::kStages ? 0 : next + 1;
  }
}

}  // namespace headroom::cuda
