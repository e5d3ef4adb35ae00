// Reading, writing and comparing first steps.
#include "train/compare/first_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/memory/caching_allocator.h"
#include "train/checkpoint/safetensors.h"

namespace headroom {
namespace {

constexpr const char* kGradient = "gradient.";
constexpr const char* kBuffer = "buffer.";

// The values of a dense f32 tensor. Copied as they lie and put in order here, because a copy in
// logical order on the device would count in its peak.
std::vector<float> values_on_host(const Tensor& x) {
  const View view = x.view();
  CHECK(view.dtype == DType::f32 && view.is_dense(), "needs a dense f32 tensor, got ",
        x.describe());
  std::vector<float> raw(static_cast<size_t>(x.numel()));
  runtime_of(x.device()).copy_to_host(raw.data(), view.data, x.nbytes());
  if (view.rank() != 4 || view.format == MemoryFormat::contiguous) return raw;
  std::vector<float> out;
  out.reserve(raw.size());
  for (int64_t n = 0; n < view.shape[0]; ++n) {
    for (int64_t c = 0; c < view.shape[1]; ++c) {
      for (int64_t h = 0; h < view.shape[2]; ++h) {
        for (int64_t w = 0; w < view.shape[3]; ++w) {
          const int64_t at =
              n * view.strides[0] + c * view.strides[1] + h * view.strides[2] + w * view.strides[3];
          out.push_back(raw[static_cast<size_t>(at)]);
        }
      }
    }
  }
  return out;
}

// A file's header has its tensors by name, whatever order they were written in.
void sort_by_name(std::vector<NamedValues>& entries) {
  std::sort(entries.begin(), entries.end(),
            [](const NamedValues& a, const NamedValues& b) { return a.name < b.name; });
}

NamedValues named_values(const std::string& name, const Tensor& x) {
  return {name, {x.shape().begin(), x.shape().end()}, values_on_host(x)};
}

void append(const std::string& prefix, const std::vector<NamedValues>& from,
            std::vector<NamedTensor>& to) {
  for (const NamedValues& entry : from) {
    Shape shape;
    for (const int64_t extent : entry.shape) shape.push_back(extent);
    to.push_back({prefix + entry.name, from_vector(entry.values, shape, {DType::f32})});
  }
}

double largest_magnitude(const std::vector<float>& values) {
  double out = 0;
  for (const float v : values) {
    if (!std::isfinite(v)) return NAN;
    out = std::max(out, std::abs(static_cast<double>(v)));
  }
  return out;
}

bool have_same_bits(const std::vector<NamedValues>& a, const std::vector<NamedValues>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const NamedValues& x, const NamedValues& y) {
        return x.name == y.name && x.values.size() == y.values.size() &&
               std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(float)) == 0;
      });
}

}  // namespace

NamedValues used_gradient(const UsedGradientInfo& info) {
  for (const NamedTensor& entry : info.model->named_parameters()) {
    if (entry.tensor.leaf() != info.parameter.leaf()) continue;
    return named_values(entry.name, info.parameter.grad());
  }
  throw InvalidArgument("first step: a gradient of no parameter of the model");
}

FirstStep first_step_of(const GradientInfo& info, std::vector<NamedValues> used) {
  FirstStep out;
  out.gradients = std::move(used);
  const auto scale = static_cast<float>(info.read_scale());
  for (const NamedTensor& entry : info.model->named_parameters()) {
    const Tensor gradient = entry.tensor.grad();
    if (!gradient.defined()) continue;
    out.gradients.push_back(named_values(entry.name, gradient));
    for (float& v : out.gradients.back().values) v /= scale;
  }
  for (const NamedTensor& entry : info.model->named_buffers()) {
    out.buffers.push_back(named_values(entry.name, entry.tensor));
  }
  sort_by_name(out.gradients);
  sort_by_name(out.buffers);
  return out;
}

// FNV-1a, 64 bits.
std::string fingerprint_of(const Module& model) {
  constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](const std::vector<NamedTensor>& entries) {
    for (const NamedTensor& entry : entries) {
      for (const float v : values_on_host(entry.tensor)) {
        uint32_t bits = 0;
        std::memcpy(&bits, &v, sizeof bits);
        hash = (hash ^ bits) * kPrime;
      }
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return fmt::format("{:016x}", hash);
}

void write_first_step(const std::string& path, const FirstStep& step) {
  std::vector<NamedTensor> tensors;
  append(kGradient, step.gradients, tensors);
  append(kBuffer, step.buffers, tensors);
  const std::string bytes = to_safetensors(tensors);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw DataError("the first step's gradients cannot be written to " + path);
}

FirstStep read_first_step(const std::string& path) {
  FirstStep out;
  for (const NamedTensor& entry : read_safetensors(path).tensors) {
    const bool is_gradient = entry.name.starts_with(kGradient);
    const std::string name = entry.name.substr(std::strlen(is_gradient ? kGradient : kBuffer));
    (is_gradient ? out.gradients : out.buffers).push_back(named_values(name, entry.tensor));
  }
  sort_by_name(out.gradients);
  sort_by_name(out.buffers);
  return out;
}

bool are_identical(const FirstStep& a, const FirstStep& b) {
  return have_same_bits(a.gradients, b.gradients) && have_same_bits(a.buffers, b.buffers);
}

std::optional<double> largest_difference(const std::vector<NamedValues>& a,
                                         const std::vector<NamedValues>& b) {
  if (a.empty() || a.size() != b.size()) return std::nullopt;
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || a[i].shape != b[i].shape) return std::nullopt;
    double largest = 0;
    for (size_t k = 0; k < a[i].values.size(); ++k) {
      const double difference =
          static_cast<double>(a[i].values[k]) - static_cast<double>(b[i].values[k]);
      if (!std::isfinite(difference)) return std::nullopt;
      largest = std::max(largest, std::abs(difference));
    }
    if (largest == 0) continue;
    out = std::max(out, largest / largest_magnitude(b[i].values));
  }
  return std::isfinite(out) ? std::optional<double>(out) : std::nullopt;
}

}  // namespace headroom
