// The graph API of cudnn-frontend, for single convolutions: building graphs, choosing plans by
// heuristics or by timing, caching and running them.
#include "kernels/cuda/cudnn_conv.h"

// The frontend compiles attention kernels of its own through NVRTC. Convolutions never get there,
// so that library is not linked and its symbols may stay undefined.
#pragma weak nvrtcCompileProgram
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#pragma weak nvrtcGetErrorString
#pragma weak nvrtcGetPTX
#pragma weak nvrtcGetPTXSize
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize
#define CUDNN_FRONTEND_SKIP_JSON_LIB  // nothing is serialised
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/settings.h"
#include "core/ops/conv_calls.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/cudnn_conv_key.h"
#include "kernels/cuda/gpu_users.h"
#include "kernels/cuda/library_call.h"
#include "kernels/cuda/library_versions.h"

namespace headroom::cuda {
namespace {

namespace fe = cudnn_frontend;

// A candidate is timed by launches back to back, so that the gap between two events does not drown
// a kernel of a few microseconds.
constexpr float kSampleMs = 0.2F;
constexpr int kMaxLaunchesPerSample = 16;
constexpr int kSamples = 4;
constexpr float kGiveUpRatio = 1.5F;       // against the best so far, after the first sample
constexpr float kWorthwhileRatio = 0.98F;  // heuristics come first in a draw

cudnnHandle_t handle() {
  static cudnnHandle_t made = [] {
    cudnnHandle_t out = nullptr;
    cudnnStatus_t status = cudnnCreate(&out);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(out, compute_stream());
    if (status != CUDNN_STATUS_SUCCESS) {
      throw DeviceError(detail::concat("cudnnCreate: ", cudnnGetErrorString(status), ", cuDNN ",
                                       cudnn_version_text(), memory_note()));
    }
    return out;
  }();
  return made;
}

[[noreturn]] void fail(const ConvCall& call, const std::string& what) {
  throw DeviceError(detail::concat(describe(call), ": cuDNN ", cudnn_version_text(), ": ", what));
}

// ---- graphs ----

// The order of the pointers that an execution takes: ascending ids.
enum TensorId : int64_t { kFirst = 1, kSecond, kBias, kOutput };

fe::DataType_t data_type(const ConvCall& call) {
  switch (call.x.dtype) {
    case DType::f16:
      return fe::DataType_t::HALF;
    case DType::bf16:
      return fe::DataType_t::BFLOAT16;
    case DType::f32:
      return fe::DataType_t::FLOAT;
    default:
      throw InvalidArgument(detail::concat(name_of(call.direction),
                                           ": computes in f16, bf16 or f32 on cuda but got ",
                                           call.x.dtype));
  }
}

// The three images of a call, told apart by how a direction uses them.
struct Roles {
  const View* first;  // inputs
  const View* second;
  const View* output;
};
Roles roles_of(const ConvCall& call) {
  switch (call.direction) {
    case ConvDirection::forward:
      return {&call.x, &call.w, &call.y};
    case ConvDirection::backward_input:
      return {&call.y, &call.w, &call.x};
    default:
      return {&call.y, &call.x, &call.w};
  }
}

std::vector<int64_t> vector_of(const Axes& axes) { return {axes.begin(), axes.end()}; }

fe::graph::Tensor_attributes tensor(const View& view, int64_t id, const char* name) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(id)
      .set_dim(vector_of(view.shape))
      .set_stride(vector_of(dense_strides(view.shape, view.format)))
      .set_alignment(conv_alignment(view));
}

template <class Attributes>
Attributes geometry(const Conv2dParams& params) {
  const auto pair = [](const std::array<int64_t, 2>& value) {
    return std::vector<int64_t>{value[0], value[1]};
  };
  return Attributes()
      .set_padding(pair(params.padding))
      .set_stride(pair(params.stride))
      .set_dilation(pair(params.dilation));
}

// The graph of a call with its candidates listed and filtered, or nullptr if cuDNN has none; `why`
// then says what it answered. Deterministic: the same call lists the same candidates in the same
// order.
std::unique_ptr<fe::graph::Graph> make_graph(const ConvCall& call, bool runtime_compiled,
                                             std::string& why) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(data_type(call))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Roles roles = roles_of(call);
  auto first = graph->tensor(tensor(*roles.first, kFirst, "first"));
  auto second = graph->tensor(tensor(*roles.second, kSecond, "second"));
  std::shared_ptr<fe::graph::Tensor_attributes> out;
  switch (call.direction) {
    case ConvDirection::forward:
      out =
          graph->conv_fprop(first, second, geometry<fe::graph::Conv_fprop_attributes>(call.params));
      if (call.bias) {
        View row = call.bias;  // [1,k,1,1] in y's format
        row.shape = {1, call.bias.numel(), 1, 1};
        row.format = call.y.format;
        out =
            graph->pointwise(out, graph->tensor(tensor(row, kBias, "bias")),
                             fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
      }
      break;
    case ConvDirection::backward_input:
      out =
          graph->conv_dgrad(first, second, geometry<fe::graph::Conv_dgrad_attributes>(call.params));
      break;
    case ConvDirection::backward_weight:
      out =
          graph->conv_wgrad(first, second, geometry<fe::graph::Conv_wgrad_attributes>(call.params));
      break;
  }
  out->set_output(true)
      .set_uid(kOutput)
      .set_data_type(data_type(call))
      .set_dim(vector_of(roles.output->shape))
      .set_stride(vector_of(dense_strides(roles.output->shape, roles.output->format)))
      .set_alignment(conv_alignment(*roles.output));

  fe::error_t status = graph->validate();
  if (status.is_good()) status = graph->build_operation_graph(handle());
  if (status.is_good()) {
    // One query for both modes: the frontend's lists of notes match its candidates only then.
    status = graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
  }
  if (status.is_bad()) {
    why = status.get_message();
    return nullptr;
  }
  // Every sum is in f32, also the sum of split sums. Costs no first choice on the usual networks.
  std::vector<fe::NumericalNote_t> barred = {fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (settings().deterministic) barred.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
  if (call.x.dtype == DType::f32 && settings().tf32 == Tf32::off) {
    // An engine that uses tensor cores on f32 rounds its inputs to TF32.
    barred.push_back(fe::NumericalNote_t::TENSOR_CORE);
    barred.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
  }
  graph->deselect_numeric_notes(barred);
  if (!runtime_compiled) {  // a second of one core for each plan
    graph->deselect_behavior_notes({fe::BehaviorNote_t::RUNTIME_COMPILATION});
  }
  graph->deselect_workspace_greater_than(call.workspace_bytes);
  return graph;
}

// ---- plans ----

struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;  // nullptr: none fits
  int64_t index = 0;
  ConvEngine engine;
};

bool build(fe::graph::Graph& graph, int64_t index, int64_t workspace_bytes) {
  if (graph.build_plan_at_index(index).is_bad()) return false;
  int64_t needed = 0;
  return graph.get_workspace_size_plan_at_index(index, needed).is_good() &&
         needed <= workspace_bytes;
}

fe::error_t execute(const fe::graph::Graph& graph, int64_t index, const ConvCall& call) {
  const Roles roles = roles_of(call);
  std::array<void*, 4> pointers{};
  int count = 0;
  pointers[count++] = roles.first->data;
  pointers[count++] = roles.second->data;
  if (call.bias) pointers[count++] = call.bias.data;
  pointers[count++] = roles.output->data;
  return graph.execute_plan_at_index(handle(), pointers.data(), count, call.workspace, index);
}

class EventPair {
 public:
  EventPair() {
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;
  ~EventPair() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // Device milliseconds of what `work` enqueues on the compute stream; waits for it.
  template <class Work>
  float time(Work&& work) {
    CUDA_CHECK(cudaEventRecord(begin_, compute_stream()));
    work();
    CUDA_CHECK(cudaEventRecord(end_, compute_stream()));
    CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// The least milliseconds of one launch over a few samples, or infinity if it fails or is clearly
// slower than `best`.
float time_candidate(const fe::graph::Graph& graph, int64_t index, const ConvCall& call,
                     EventPair& events, float best) {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  if (execute(graph, index, call).is_bad()) return kNever;  // warms up: loads its kernels
  bool failed = false;
  const auto sample = [&](int launches) {
    const float ms = events.time([&] {
      for (int i = 0; i < launches; ++i) failed |= execute(graph, index, call).is_bad();
    });
    return ms / static_cast<float>(launches);
  };
  float least = sample(1);
  if (failed || least > kGiveUpRatio * best + kSampleMs) return kNever;
  const int launches =
      std::clamp(static_cast<int>(kSampleMs / std::max(least, 1e-3F)), 1, kMaxLaunchesPerSample);
  for (int i = 0; i < kSamples; ++i) {
    least = std::min(least, sample(launches));
    if (failed || least > kGiveUpRatio * best) return kNever;
  }
  return least;
}

std::string chosen_lines;

// The index of the fastest candidate, or -1. Operands are read and the output is overwritten.
int64_t search(fe::graph::Graph& graph, const ConvCall& call, ConvEngine& told) {
  EventPair events;
  int64_t best = -1;
  float best_ms = std::numeric_limits<float>::infinity();
  const int64_t begin_ns = process_time_ns();
  for (int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
    if (!build(graph, i, call.workspace_bytes)) continue;
    ++told.searched_plans;
    const float ms = time_candidate(graph, i, call, events, best_ms);
    if (ms < kWorthwhileRatio * best_ms) {
      best = i;
      best_ms = ms;
    }
  }
  constexpr double kNsPerMs = 1e6;
  told.search_ms = static_cast<double>(process_time_ns() - begin_ns) / kNsPerMs;
  if (best >= 0) told.best_ms = best_ms;
  return best;
}

int64_t first_that_builds(fe::graph::Graph& graph, const ConvCall& call) {
  for (int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
    if (build(graph, i, call.workspace_bytes)) return i;
  }
  return -1;
}

bool is_capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(compute_stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

void note_choice(const ConvCall& call, Plan& plan, const std::string& why) {
  std::string line = describe(call) + ": ";
  if (plan.graph == nullptr) {
    line += "no plan";
    if (!why.empty()) line += detail::concat(" (", why.substr(0, why.find('\n')), ")");
  } else {
    ConvEngine& engine = plan.engine;
    if (plan.graph->get_plan_name_at_index(plan.index, engine.name).is_bad() ||
        plan.graph->get_workspace_size_plan_at_index(plan.index, engine.used_bytes).is_bad()) {
      engine.name = "?";
    }
    line +=
        detail::concat("plan ", plan.index, " ", engine.name, ", uses ", engine.used_bytes, " B");
    if (engine.best_ms > 0) line += detail::concat(", ", engine.best_ms, " ms");
  }
  line += '\n';
  static const bool log = std::getenv("HEADROOM_LOG_CONV") != nullptr;
  if (log) std::fputs(line.c_str(), stderr);
  chosen_lines += line;
}

Plan choose(const ConvCall& call) {
  const bool timed = settings().cudnn_benchmark && !is_capturing();
  Plan plan;
  std::string why;
  for (const bool runtime_compiled : {false, true}) {
    auto graph = make_graph(call, runtime_compiled, why);
    if (graph == nullptr) break;
    plan.index = timed && !runtime_compiled ? search(*graph, call, plan.engine)
                                            : first_that_builds(*graph, call);
    if (plan.index < 0) continue;
    if (timed && !runtime_compiled) {
      // A fresh graph holds the winner alone; the losers' plans go.
      graph = make_graph(call, runtime_compiled, why);
      if (graph == nullptr || !build(*graph, plan.index, call.workspace_bytes)) {
        fail(call, detail::concat("a plan that ran could not be built again: ", why));
      }
    }
    plan.graph = std::move(graph);
    break;
  }
  cudaGetLastError();  // what a refused candidate left behind is nobody else's error
  note_choice(call, plan, why);
  return plan;
}

// Lives until the process ends: cuDNN's own state may be gone when static objects are destroyed.
std::unordered_map<PlanKey, Plan, HashWords>& plans() {
  static auto* cache = new std::unordered_map<PlanKey, Plan, HashWords>;
  return *cache;
}

}  // namespace

bool run_cudnn_conv(const ConvCall& call) {
  const PlanKey key = key_of(call);
  auto found = plans().find(key);
  try {
    if (found == plans().end()) found = plans().emplace(key, choose(call)).first;
    const Plan& plan = found->second;
    if (plan.graph == nullptr) return false;
    fe::error_t status = execute(*plan.graph, plan.index, call);
    if (status.is_bad()) fail(call, status.get_message());
    detail::note_conv_engine(plan.engine);
  } catch (const fe::cudnnException& error) {
    fail(call, error.what());
  }
  return true;
}

std::string describe_conv_plans() { return chosen_lines; }

}  // namespace headroom::cuda
