// The ledger that a running `train` publishes: what its allocator holds, in a small file that
// others read while it is being written. Named headroom-PID.ledger, in the first of these folders
// that takes a file: $XDG_RUNTIME_DIR, /run/user/UID, $TMPDIR, /tmp. Where the environment's
// HEADROOM_LEDGERS names another folder, only that one is used.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/stats.h"
#include "train/trainer.h"

namespace headroom {

// The record as it lies in the file, all of it in words of eight bytes. Bytes; -1 is not known.
struct Ledger {
  int64_t pid = 0;
  int64_t updated_ms = 0;  // of the system's clock, since 1970
  char device[16] = {};    // "cuda", "cpu"
  char model[32] = {};     // "resnet18"
  int64_t step = 0;        // optimizer steps done
  int64_t total_steps = 0;
  int64_t allocated_bytes = 0;  // in live blocks
  int64_t reserved_bytes = 0;   // held from the device
  int64_t split_bytes = 0;      // free pieces of segments that are partly in use
  int64_t peak_allocated_bytes = 0;
  int64_t limit_bytes = 0;  // of the allocator; 0 is none
  // Context and libraries: what the process held at the end of its first step besides the
  // allocator's segments, when handles are made and code is loaded; until then, before its first
  // segment. On a CPU also data sets and other heap.
  int64_t outside_bytes = -1;
  int64_t tag_bytes[kTagCount] = {};  // of the live blocks, indexed by Tag

  int64_t cached_bytes() const { return reserved_bytes - allocated_bytes - split_bytes; }
};

// Writes the ledger while a run goes on. A ledger that cannot be made or written is no error: the
// run goes on without. A meta device holds no memory and has no ledger.
class LedgerWriter : public TrainObserver {
 public:
  // Measures the process: to be made before the allocator's first segment.
  LedgerWriter(const std::string& model, Device device);
  ~LedgerWriter() override;  // removes the file
  LedgerWriter(const LedgerWriter&) = delete;
  LedgerWriter& operator=(const LedgerWriter&) = delete;

  void on_start(const RunInfo& info) override;
  void on_gradients(const GradientInfo&) override { publish(); }
  void on_step(const StepInfo& step) override;
  void on_evaluation_begin() override { publish(); }
  void on_epoch(const EpochInfo&) override { publish(); }

 private:
  void open();
  bool open_in(const std::string& folder);
  void close();
  bool publish();  // false if the file did not take it

  Device device_;
  Ledger ledger_;
  std::string path_;
  int file_ = -1;  // held locked: the lock says that the writer lives; -1: there is no file
};

// The folders that hold ledgers, in the order in which a writer tries them.
std::vector<std::string> ledger_folders();

// Of every run whose ledger this user may read, by pid. Removes ledgers that were left behind by
// processes that were killed. Ignores what is no ledger of this version, and a ledger that names a
// process of somebody else.
std::vector<Ledger> read_ledgers();

}  // namespace headroom
