// Registers every backend that was built.
#include "kernels/register.h"

namespace headroom {

void register_kernels() {
  register_cpu_kernels();
#ifdef HEADROOM_WITH_CUDA
  register_cuda_kernels();
#endif
}

}  // namespace headroom
