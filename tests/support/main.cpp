// The test program: registers the kernels of every backend that was built, then runs GoogleTest.
#include <gtest/gtest.h>

#include "kernels/register.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  headroom::register_kernels();
  return RUN_ALL_TESTS();
}
