// The versions of the libraries that the CUDA kernels call, as loaded at run time: a machine may
// have another cuDNN than the one whose headers were compiled.
#pragma once

#include <string>

namespace headroom::cuda {

// major * 10000 + minor * 100 + patch, as cudnnGetVersion() gives it since cuDNN 9.
int cudnn_version();
int cudnn_compiled_version();
// major * 10000 + minor * 100 + patch of cuBLASLt.
int cublas_version();

// "9.19.0", or "9.14.0 (compiled with 9.19.0)" when they differ.
std::string cudnn_version_text();
std::string cublas_version_text();  // "13.1.0"

}  // namespace headroom::cuda
