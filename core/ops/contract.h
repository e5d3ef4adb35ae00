// The whole backend contract: every kernel that a device has to provide, with layouts. Ops
// allocate; kernels never do. A kernel writes only the views named as outputs (last), reads strided
// views as they are, and computes in f32 for half types (f64 for f64) whatever the storage.
//
// "dense" below means View::is_dense(); images of rank 4 may be contiguous (nchw) or channels_last
// (nhwc), and all images of one call share one format unless a line says otherwise. Views may be
// empty (numel 0): a kernel then writes the neutral result (zeros for gradients of weights) or
// nothing. A kernel throws InvalidArgument, naming itself, for a dtype that it does not compute in
// (f64 on CUDA, copies, fills and random fills excepted), Error for operands that break the
// contract, and DeviceError for what the device or its library reports.
#pragma once

#include <cstdint>

#include "core/ops/kernel_slot.h"
#include "core/ops/params.h"

namespace headroom::slots {

// ---- elementwise; x, y of one shape, any strides, floating dtypes ----

// y = x converted to y's dtype; any dtypes, any strides (also 0 in x). Also layout changes.
extern KernelSlot<void(const View& x, const View& y)> copy;
extern KernelSlot<void(double value, const View& y)> fill;  // any dtype
// Element i (logical row-major index) from Philox word (seed, offset, i): uniform in [low, high).
extern KernelSlot<void(uint64_t seed, uint64_t offset, double low, double high, const View& y)>
    fill_uniform;
// Box-Muller on the words 2*(i/2), 2*(i/2)+1 of the same draw; cosine for even i, sine for odd.
extern KernelSlot<void(uint64_t seed, uint64_t offset, double mean, double deviation,
                       const View& y)>
    fill_normal;

// y = f(x; alpha). y may be x itself.
extern KernelSlot<void(UnaryOp op, double alpha, const View& x, const View& y)> unary;
// dx = dy * f'(saved; alpha), where saved is x or y as unary_saves(op) says. dx may be dy itself.
extern KernelSlot<void(UnaryOp op, double alpha, const View& saved, const View& dy, const View& dx)>
    unary_backward;
// mask: u8 [ceil(n / 8)]; bit i % 8 of byte i / 8 says whether relu passes the gradient at element
// i of y, which is dense, counted in the order in which y is stored. Bits beyond n are 0.
extern KernelSlot<void(const View& y, const View& mask)> relu_mask;
// dx = dy where the bit is set, else 0. dy and dx are stored like the y of the mask, in one dtype;
// dx may be dy itself.
extern KernelSlot<void(const View& mask, const View& dy, const View& dx)> relu_mask_backward;
// y = a op b; a and b were expanded to y's shape (strides 0). Dtypes may differ. y may be a or b.
extern KernelSlot<void(BinaryOp op, const View& a, const View& b, const View& y)> binary;

// y = x * mask / (1 - p), mask from Philox word i of the draw (kept when uniform >= p); the same
// call with dy for x is its backward. p = 1 gives exact zeros, p = 0 the identity.
extern KernelSlot<void(double p, uint64_t seed, uint64_t offset, const View& x, const View& y)>
    dropout;

// ---- reductions ----

// y has x's rank, with extent 1 along the axes that are reduced. Accumulates in f32 (f64 for f64);
// y's dtype may be wider than x's. The mean of nothing is NaN.
extern KernelSlot<void(ReduceOp op, const View& x, const View& y)> reduce;
// Along `axis` of x: values (may be undefined) and indices i64 with extent 1 there; the first of
// equals, NaN counts as largest. The extent along the axis is at least 1.
extern KernelSlot<void(const View& x, int axis, const View& values, const View& indices)> max_along;
// dx = 0, then dx[..., indices, ...] = dy along axis.
extern KernelSlot<void(const View& dy, const View& indices, int axis, const View& dx)>
    scatter_along;

// ---- matrix product; all dense, rank 2 ----

// y[m,n] = op(a) * op(b) + bias[n] (bias optional).
// a is [m,k] or, with transpose_a, [k,m]; b likewise [k,n] or [n,k]. a and b of one dtype; y of
// that dtype or f32; bias of any floating dtype. workspace: u8, of matmul_workspace_bytes(), or
// undefined.
extern KernelSlot<void(const View& a, const View& b, const View& bias, const MatmulParams& params,
                       const View& workspace, const View& y)>
    matmul;

// ---- convolution; x [n,c,h,w], w [k,c/groups,r,s], y [n,k,p,q], dense, one format, one dtype ----
// bias [k] (optional), any floating dtype. dw may be f32 while x is half. workspace: u8, of
// conv2d_workspace_bytes(), or undefined. Cross-correlation, as everywhere in deep learning.
// params.algorithm says library (cuDNN) or native; native kernels and the CPU take channels_last
// only.
extern KernelSlot<void(const View& x, const View& w, const View& bias, const Conv2dParams& params,
                       const View& workspace, const View& y)>
    conv2d;
extern KernelSlot<void(const View& dy, const View& w, const Conv2dParams& params,
                       const View& workspace, const View& dx)>
    conv2d_backward_input;
extern KernelSlot<void(const View& x, const View& dy, const Conv2dParams& params,
                       const View& workspace, const View& dw)>
    conv2d_backward_weight;
// y [n,c+extra,h,w] = x with zero channels appended, or with channels dropped when y has fewer;
// channels_last, dtypes may differ.
extern KernelSlot<void(const View& x, const View& y)> pad_channels;

// ---- pooling; x [n,c,h,w], y [n,c,p,q], dense, one format ----

// Padding never wins a maximum; the first of equals wins, NaN beats all. offsets (optional): per
// output the winner's place in its window, r * kernel_w + s, u8, or i64 for windows over 255.
extern KernelSlot<void(const View& x, const Pool2dParams& params, const View& y,
                       const View& offsets)>
    max_pool2d;
extern KernelSlot<void(const View& dy, const View& offsets, const Pool2dParams& params,
                       const View& dx)>
    max_pool2d_backward;
// The divisor counts padding (but never what overhangs the padded input) if params.count_padding,
// else only real elements.
extern KernelSlot<void(const View& x, const Pool2dParams& params, const View& y)> avg_pool2d;
extern KernelSlot<void(const View& dy, const Pool2dParams& params, const View& dx)>
    avg_pool2d_backward;

// ---- batch normalisation; x, residual, y [n,c,h,w] dense, or [n,c] ----
// gamma, beta, running_mean, running_var, mean, rstd, dgamma, dbeta: [c], f32 whatever x is (f64
// for f64). residual, gamma, beta, running_* are optional. y = relu?(gamma * (x - mean) * rstd +
// beta + residual), relu if params.relu.

// Batch statistics (biased variance) into mean and rstd = 1/sqrt(var + eps); running averages move
// by params.momentum (unbiased variance), only if the batch's statistics are finite. workspace: u8,
// of batch_norm_workspace_bytes().
extern KernelSlot<void(const View& x, const View& residual, const View& gamma, const View& beta,
                       const BatchNormParams& params, const View& workspace, const View& y,
                       const View& mean, const View& rstd, const View& running_mean,
                       const View& running_var)>
    batch_norm_train;
// The same output again from known statistics, bit for bit.
extern KernelSlot<void(const View& x, const View& residual, const View& gamma, const View& beta,
                       const View& mean, const View& rstd, const BatchNormParams& params,
                       const View& y)>
    batch_norm_apply;
// rstd = 1/sqrt(running_var + eps), for evaluation.
extern KernelSlot<void(const View& running_var, double eps, const View& rstd)> batch_norm_rstd;
// dy' = dy, or with params.relu dy * [y > 0]; y is read if given, else its sign is recomputed from
// x. params.training: dx = gamma*rstd*(dy' - mean(dy') - xhat*mean(dy'*xhat)); otherwise statistics
// were constants and dx = gamma*rstd*dy'. dgamma = sum(dy'*xhat), dbeta = sum(dy'). dx, dresidual,
// dgamma, dbeta are each optional. dresidual = dy'; it may be dy itself. dx may be dy (only if
// dresidual is undefined or elsewhere) or x.
extern KernelSlot<void(const View& x, const View& y, const View& dy, const View& gamma,
                       const View& beta, const View& mean, const View& rstd,
                       const BatchNormParams& params, const View& workspace, const View& dx,
                       const View& dresidual, const View& dgamma, const View& dbeta)>
    batch_norm_backward;

// ---- softmax and losses; x, y [rows, columns] dense ----

extern KernelSlot<void(const View& x, const View& y)> softmax;
extern KernelSlot<void(const View& x, const View& y)> log_softmax;
extern KernelSlot<void(const View& y, const View& dy, const View& dx)> softmax_backward;
extern KernelSlot<void(const View& y, const View& dy, const View& dx)> log_softmax_backward;
// logits [n,c] any floating dtype; labels i64 [n]. Row loss = (1 - s) * (lse - z[label]) +
// s * (lse - mean z), 0 for ignored rows. row_loss, lse [n], loss [] and counted [] are f32 (f64
// for f64). loss = sum(row_loss) / divisor; divisor as params.reduction says. A label outside [0,
// c) that is not ignored: the CPU throws InvalidArgument; CUDA records it and the next wait throws.
// The message names cross_entropy, the label, the row and the class count; that row counts as
// ignored.
extern KernelSlot<void(const View& logits, const View& labels, const CrossEntropyParams& params,
                       const View& row_loss, const View& lse, const View& loss,
                       const View& counted)>
    cross_entropy;
// dlogits = dloss[] / divisor * (softmax - target), zero for ignored rows.
extern KernelSlot<void(const View& logits, const View& labels, const View& lse, const View& counted,
                       const View& dloss, const CrossEntropyParams& params, const View& dlogits)>
    cross_entropy_backward;
// count (i64, []) += rows whose first maximum is the label; ignored labels are not counted.
extern KernelSlot<void(const View& logits, const View& labels, int64_t ignored_label,
                       const View& count)>
    count_correct;

// ---- input ----

// y [n,c,oh,ow] = (pixel/255 - mean[c]) / deviation[c] from pixels u8 [n,h,w,c]. offsets i64 [n,3]
// (optional) holds per image the row and column shift (source = destination + shift; outside is 0
// after normalisation) and whether to mirror left-right after the shift. mean, deviation f32 [c].
extern KernelSlot<void(const View& pixels, const View& offsets, const View& mean,
                       const View& deviation, const View& y)>
    normalize_images;
// rows[i] = table[index[i]]; table u8 [N, bytes], index i64 [n], rows u8 [n, bytes].
extern KernelSlot<void(const View& table, const View& index, const View& rows)> gather_rows;

// ---- optimizers; lists of equal length, element i of each belongs to parameter i ----
// Parameters f32 or f64 (or half), gradients any floating dtype, state f32 (f64 for f64).
// control: f32 [kControlFields], on the device, see params.h; every update multiplies gradients by
// control[inv_scale] * control[clip] and does nothing at all when control[found_inf] != 0.
// half_copies: undefined views, or the half copy to be written in the same pass.

extern KernelSlot<void(const ViewList& parameters, const ViewList& gradients,
                       const ViewList& momenta, const ViewList& half_copies, const View& control,
                       const SgdParams& params)>
    sgd_step;
extern KernelSlot<void(const ViewList& parameters, const ViewList& gradients,
                       const ViewList& first_moments, const ViewList& second_moments,
                       const ViewList& half_copies, const View& control, const AdamParams& params)>
    adam_step;
// control[found_inf] = 1 if any element is inf or NaN (never back to 0).
extern KernelSlot<void(const ViewList& gradients, const View& control)> check_finite;
// control[grad_norm] = inv_scale * sqrt(sum of squares over all); control[clip] = min(1, max_norm /
// (norm + 1e-6)); max_norm <= 0 leaves clip alone.
extern KernelSlot<void(const ViewList& gradients, double max_norm, const View& control)> clip_norm;
// Before an update: lr = rates[min(applied, last)], bias corrections for t = applied + 1,
// inv_scale = 1/scale (1 if scale is undefined), found_inf = 0, clip = 1. applied: i64 [].
extern KernelSlot<void(const View& rates, const View& applied, const View& scale,
                       const PrepareParams& params, const View& control)>
    prepare_step;
// After it: applied += 1 unless found_inf; with a scale (f32 []), growth_tracker (i64 []): backoff
// or growth, clamped to [scaler.min_scale, scaler.max_scale].
extern KernelSlot<void(const View& control, const ScalerParams& params, const View& applied,
                       const View& scale, const View& growth_tracker)>
    finish_step;

}  // namespace headroom::slots
