// Every op.
#pragma once

#include "core/ops/conv.h"         // IWYU pragma: export
#include "core/ops/elementwise.h"  // IWYU pragma: export
#include "core/ops/linalg.h"       // IWYU pragma: export
#include "core/ops/loss.h"         // IWYU pragma: export
#include "core/ops/norm.h"         // IWYU pragma: export
#include "core/ops/pool.h"         // IWYU pragma: export
#include "core/ops/reduce.h"       // IWYU pragma: export
#include "core/ops/shape_ops.h"    // IWYU pragma: export
