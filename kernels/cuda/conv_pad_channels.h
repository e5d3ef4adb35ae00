// The pad_channels slot on CUDA.
#pragma once

#include "core/tensor/view.h"

namespace headroom {

// y [n,c+extra,h,w] = x with zero channels appended, or with channels dropped when y has fewer;
// channels_last, dense, floating dtypes (f64 excepted) that may differ.
void cuda_pad_channels(const View& x, const View& y);

}  // namespace headroom
