// A test of CUDA's kernels in their exact mode: skips where there is no GPU, keeps TF32 off, and
// puts the settings back.
#pragma once

#include <gtest/gtest.h>

#include "core/base/device.h"
#include "core/base/settings.h"

namespace headroom::testing_kernels {

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
    before_ = settings();
    settings().tf32 = Tf32::off;
  }
  void TearDown() override {
    if (has_runtime(Device::cuda())) settings() = before_;
  }

 private:
  Settings before_;
};

}  // namespace headroom::testing_kernels
