// The matrix product slot on CUDA, by cuBLASLt. Row-major y = op(a) op(b) is computed as the
// column-major product y^T = op(b)^T op(a)^T: the same bytes, with operands and extents swapped.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

#include "core/base/settings.h"
#include "core/ops/contract.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/gpu_users.h"
#include "kernels/cuda/library_call.h"
#include "kernels/cuda/library_versions.h"

namespace headroom {
namespace {

using namespace cuda;

struct Problem {
  int64_t m = 0, n = 0, k = 0;
  View a, b, bias, y;  // bias, if defined, is of y's dtype
  MatmulParams params;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// `call` is the text of the failed call, or what failed.
[[noreturn]] void fail(const Problem& problem, std::string call, cublasStatus_t status) {
  call.resize(std::min(call.size(), call.find('(')));
  // What a full GPU makes of a new handle.
  const bool may_be_full =
      status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED;
  throw DeviceError(detail::concat(
      "matmul (a ", describe(problem.a), problem.params.transpose_a ? " transposed" : "", ", b ",
      describe(problem.b), problem.params.transpose_b ? " transposed" : "", ", y ",
      describe(problem.y), "): ", call, ": ", cublasLtGetStatusString(status), ", cuBLAS ",
      cublas_version_text(), may_be_full ? memory_note() : ""));
}

#define CUBLAS_CHECK(problem, call)                                                  \
  do {                                                                               \
    const cublasStatus_t cublas_status = (call);                                     \
    if (cublas_status != CUBLAS_STATUS_SUCCESS) fail(problem, #call, cublas_status); \
  } while (false)

// Lives until the process ends, like the stream it works on.
cublasLtHandle_t handle(const Problem& problem) {
  static cublasLtHandle_t made = nullptr;
  if (made == nullptr) CUBLAS_CHECK(problem, cublasLtCreate(&made));
  return made;
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f32:
      return CUDA_R_32F;
    default:
      throw InvalidArgument(
          detail::concat("matmul: computes in f16, bf16 or f32 on cuda but got ", dtype));
  }
}

bool uses_tf32(const Problem& problem) {
  return problem.a.dtype == DType::f32 && settings().tf32 == Tf32::all;
}

constexpr int64_t kMaxAlignment = 256;  // what cuBLASLt assumes unless told otherwise

int64_t alignment(const View& view) { return alignment_of(view.data, kMaxAlignment); }

// ---- plans: descriptors and the algorithm chosen, per key, for the life of the process ----

using PlanKey = std::array<int64_t, 13>;

PlanKey key_of(const Problem& p) {
  return {p.m,
          p.n,
          p.k,
          p.params.transpose_a,
          p.params.transpose_b,
          static_cast<int64_t>(p.a.dtype),
          static_cast<int64_t>(p.y.dtype),
          p.bias ? alignment(p.bias) : 0,
          alignment(p.a),
          alignment(p.b),
          alignment(p.y),
          p.workspace_bytes,
          uses_tf32(p)};
}

struct Plan {
  bool usable = false;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr;   // op(b)^T, [n,k] column-major
  cublasLtMatrixLayout_t second = nullptr;  // op(a)^T, [k,m]
  cublasLtMatrixLayout_t output = nullptr;  // y^T, [n,m]
  cublasLtMatmulAlgo_t algorithm{};
};

template <class T>
void set(const Problem& problem, cublasLtMatmulDesc_t operation,
         cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CUBLAS_CHECK(problem,
               cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}
template <class T>
void set(const Problem& problem, cublasLtMatmulPreference_t preference,
         cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  CUBLAS_CHECK(problem,
               cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

// A row-major [rows,columns] matrix is a column-major one of `columns` rows.
void make_layout(const Problem& problem, const View& matrix, cublasLtMatrixLayout_t& out) {
  const auto rows = static_cast<uint64_t>(matrix.shape[0]);
  const auto columns = static_cast<uint64_t>(matrix.shape[1]);
  CUBLAS_CHECK(problem, cublasLtMatrixLayoutCreate(&out, data_type(matrix.dtype), columns, rows,
                                                   static_cast<int64_t>(columns)));
}

void describe_plan(const Problem& problem, Plan& plan) {
  const cublasComputeType_t compute =
      uses_tf32(problem) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  CUBLAS_CHECK(problem, cublasLtMatmulDescCreate(&plan.operation, compute, CUDA_R_32F));
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(problem, plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.params.transpose_b));
  set(problem, plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.params.transpose_a));
  if (problem.bias) {  // along the rows of y^T
    set(problem, plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(problem, plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(problem.y.dtype));
    set(problem, plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.bias.data);
  }
  make_layout(problem, problem.b, plan.first);
  make_layout(problem, problem.a, plan.second);
  make_layout(problem, problem.y, plan.output);
}

// Heuristic order; the first algorithm that fits the workspace. Split sums are reduced in f32 and
// in a fixed order only, so the same call gives the same bits.
bool choose_algorithm(const Problem& problem, Plan& plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  CUBLAS_CHECK(problem, cublasLtMatmulPreferenceCreate(&preference));
  set(problem, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<uint64_t>(problem.workspace_bytes));
  set(problem, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(problem, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      static_cast<uint32_t>(alignment(problem.b)));
  set(problem, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      static_cast<uint32_t>(alignment(problem.a)));
  set(problem, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      static_cast<uint32_t>(alignment(problem.y)));
  set(problem, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
      static_cast<uint32_t>(alignment(problem.y)));
  constexpr int kCandidates = 8;
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle(problem), plan.operation, plan.first, plan.second, plan.output, plan.output,
      preference, kCandidates, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  if (status != CUBLAS_STATUS_SUCCESS) fail(problem, "cublasLtMatmulAlgoGetHeuristic", status);
  for (int i = 0; i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS ||
        found[i].workspaceSize > static_cast<size_t>(problem.workspace_bytes)) {
      continue;
    }
    plan.algorithm = found[i].algo;
    return true;
  }
  return false;
}

Plan& plan_for(const Problem& problem) {
  static auto* plans = new std::unordered_map<PlanKey, Plan, HashWords>;
  const PlanKey key = key_of(problem);
  const auto found = plans->find(key);
  if (found != plans->end()) return found->second;
  Plan plan;
  describe_plan(problem, plan);
  plan.usable = choose_algorithm(problem, plan);
  return plans->emplace(key, plan).first->second;
}

// Enqueues the product; false if cuBLASLt has no algorithm for it.
bool run(const Problem& problem) {
  Plan& plan = plan_for(problem);
  if (!plan.usable) return false;
  if (problem.bias) {
    set(problem, plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.bias.data);
  }
  const float alpha = 1, beta = 0;
  CUBLAS_CHECK(problem,
               cublasLtMatmul(handle(problem), plan.operation, &alpha, problem.b.data, plan.first,
                              problem.a.data, plan.second, &beta, problem.y.data, plan.output,
                              problem.y.data, plan.output, &plan.algorithm, problem.workspace,
                              static_cast<size_t>(problem.workspace_bytes), compute_stream()));
  return true;
}

void matmul(const View& a, const View& b, const View& bias, const MatmulParams& params,
            const View& workspace, const View& y) {
  Problem problem;
  problem.m = y.shape[0];
  problem.n = y.shape[1];
  problem.k = a.shape[params.transpose_a ? 0 : 1];
  problem.a = a;
  problem.b = b;
  problem.y = y;
  problem.params = params;
  if (y.numel() == 0) return;
  if (problem.k == 0) {
    zero(y);
    if (bias) add_bias(bias, y);
    return;
  }
  Scratch scratch(workspace);
  if (bias && bias.dtype == y.dtype) {
    problem.bias = bias;
  } else if (bias) {  // the epilogue adds a bias of y's dtype only
    problem.bias = scratch.take(bias, y.dtype);
    if (problem.bias) slots::copy(bias, problem.bias);
  }
  problem.workspace = scratch.data;
  problem.workspace_bytes = scratch.bytes;
  const bool fused = problem.bias.defined;
  if (run(problem)) {
    if (bias && !fused) add_bias(bias, y);
    return;
  }
  problem.bias = {};
  if (!fused || !run(problem)) fail(problem, "no algorithm", CUBLAS_STATUS_NOT_SUPPORTED);
  add_bias(bias, y);
}

}  // namespace

void register_cuda_matmul_kernels() { slots::matmul.set(DeviceType::cuda, &matmul); }

}  // namespace headroom
