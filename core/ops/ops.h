// Every op, and what holds for all of them. Operands are read as they lie, whatever their strides,
// and stay as they are unless the name ends in '_'. Half types are storage: values are computed and
// summed in f32, f64 in f64.
//
// InvalidArgument is thrown for operands that are undefined where the header does not say that they
// may be, of a dtype that the op does not take, of shapes that do not fit, or on different devices;
// for f64 on CUDA, which only copies, fills and draws it; and for what each header adds. The
// message names the op, what was needed and what came; nothing was written then, and the graph is
// as it was. OutOfMemory and DeviceError pass through; errors that only a GPU can see come with a
// later call that waits for it.
#pragma once

#include "core/ops/conv.h"         // IWYU pragma: export
#include "core/ops/elementwise.h"  // IWYU pragma: export
#include "core/ops/linalg.h"       // IWYU pragma: export
#include "core/ops/loss.h"         // IWYU pragma: export
#include "core/ops/norm.h"         // IWYU pragma: export
#include "core/ops/pool.h"         // IWYU pragma: export
#include "core/ops/reduce.h"       // IWYU pragma: export
#include "core/ops/shape_ops.h"    // IWYU pragma: export
