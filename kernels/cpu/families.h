// One registration function per family of CPU kernels; register_cpu.cpp calls them all.
#pragma once

namespace headroom {

void register_cpu_copy_kernels();
void register_cpu_elementwise_kernels();
void register_cpu_relu_mask_kernels();
void register_cpu_random_kernels();
void register_cpu_reduce_kernels();
void register_cpu_pool_kernels();
void register_cpu_loss_kernels();
void register_cpu_input_kernels();
void register_cpu_optimizer_kernels();
void register_cpu_conv_kernels();
void register_cpu_matmul_kernels();
void register_cpu_batch_norm_kernels();

}  // namespace headroom
