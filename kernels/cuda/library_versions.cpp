// Asks cuDNN and cuBLASLt what they are; neither call needs a GPU.
#include "kernels/cuda/library_versions.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <fmt/format.h>

namespace headroom::cuda {
namespace {

std::string dotted(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

int cudnn_version() { return static_cast<int>(cudnnGetVersion()); }
int cudnn_compiled_version() { return CUDNN_VERSION; }
int cublas_version() { return static_cast<int>(cublasLtGetVersion()); }

std::string cudnn_version_text() {
  const int loaded = cudnn_version(), compiled = cudnn_compiled_version();
  if (loaded == compiled) return dotted(loaded);
  return fmt::format("{} (compiled with {})", dotted(loaded), dotted(compiled));
}
std::string cublas_version_text() { return dotted(cublas_version()); }

}  // namespace headroom::cuda
