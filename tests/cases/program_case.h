// A case that trains: through the class Trainer, or by the program `train` in processes of its own,
// on each backend.
#pragma once

#include <string>

#include "tests/cases/case_test.h"
#include "tests/train/program_run.h"
#include "tests/train/trainer_run.h"

namespace headroom::cases {

class ProgramCase : public CaseTest {
 protected:
  // The flags that choose the backend, then `more`. Deterministic: cases compare bits. One thread
  // each: several processes share a machine.
  std::string flags(const std::string& more) const {
    std::string out = std::string("--device ") + name_of(device()) +
                      " --deterministic --threads 1 --loader-threads 1 ";
    if (GetParam() == Backend::cuda_native) out += "--no-cudnn ";
    return out + more;
  }
  // The same for the Trainer.
  TrainConfig on_backend(TrainConfig config) const {
    config.device = name_of(device());
    config.cudnn = GetParam() != Backend::cuda_native;
    config.deterministic = true;
    config.threads = config.loader_threads = 1;
    return config;
  }

  test::TemporaryFolder folder_;
};

}  // namespace headroom::cases
