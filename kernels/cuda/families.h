// The families of CUDA kernels. Each function fills its slots of core/ops/contract.h for
// DeviceType::cuda; register_cuda_kernels() calls them all.
#pragma once

namespace headroom {

void register_cuda_elementwise_kernels();  // and, from it, the next two
void register_cuda_copy_kernels();
void register_cuda_relu_mask_kernels();
void register_cuda_random_kernels();
void register_cuda_reduce_kernels();
void register_cuda_matmul_kernels();
void register_cuda_conv_kernels();
void register_cuda_pool_kernels();
void register_cuda_batch_norm_kernels();
void register_cuda_loss_kernels();
void register_cuda_input_kernels();
void register_cuda_optimizer_kernels();  // and, from it, the next
void register_cuda_gradient_kernels();

}  // namespace headroom
