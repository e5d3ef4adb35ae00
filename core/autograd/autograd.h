// Everything a user of the tape needs.
#pragma once

#include "core/autograd/autocast.h"    // IWYU pragma: export
#include "core/autograd/checkpoint.h"  // IWYU pragma: export
#include "core/autograd/engine.h"      // IWYU pragma: export
#include "core/autograd/node.h"        // IWYU pragma: export
