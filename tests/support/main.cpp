// The test program: registers the kernels of every backend that was built, then runs GoogleTest.
#include <gtest/gtest.h>

#include "kernels/register.h"

int main(int argc, char** argv) {
  headroom::register_kernels();  // first: the parameters of some tests are tensors
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
