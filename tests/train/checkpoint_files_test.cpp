// Checkpoint files: what a save that fails or is killed leaves behind.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/ops/ops.h"
#include "tests/train/trainer_run.h"
#include "train/checkpoint/atomic_file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/safetensors.h"

namespace headroom {
namespace {

using test::bytes_of;
using test::TemporaryFolder;

Checkpoint checkpoint_of(double value, int64_t step) {
  Checkpoint out;
  out.model = {{"fc.weight", full({100, 100}, value)}, {"fc.bias", full({100}, value)}};
  out.optimizer = {{"0.momentum", full({100, 100}, value)}};
  out.trainer.step = step;
  out.facts = {{"model", "lenet"}};
  return out;
}

void expect_holds(const std::string& path, double value, int64_t step) {
  const Checkpoint read = load_checkpoint(path);
  EXPECT_EQ(read.trainer.step, step);
  ASSERT_EQ(read.model.size(), 2u);
  EXPECT_EQ(read.model[0].tensor.to_vector<double>(), std::vector<double>(10000, value));
}

TEST(CheckpointFiles, ASaveClearsAwayWhatAKilledOneLeft) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  const std::string of_the_dead = path + ".tmp." + std::to_string(gone);
  const std::string of_the_living = path + ".tmp." + std::to_string(getppid());
  const std::string of_another = folder.file("other.safetensors.tmp.") + std::to_string(gone);
  for (const std::string& name : {of_the_dead, of_the_living, of_another}) {
    std::ofstream(name) << "half";
  }
  save_checkpoint(path, checkpoint_of(1, 1));
  std::vector<std::string> names = folder.names();
  EXPECT_EQ(names.size(), 4u);  // two files of the run, and what is not its own to remove
  EXPECT_EQ(bytes_of(of_the_dead), "");
  EXPECT_EQ(bytes_of(of_the_living), "half");
  EXPECT_EQ(bytes_of(of_another), "half");
  expect_holds(path, 1, 1);
}

TEST(CheckpointFiles, HoldEveryFieldExactly) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  Checkpoint saved = checkpoint_of(0.1, 7);
  saved.trainer.sampler = {3, 41};
  saved.trainer.generator_seed = ~uint64_t{0};
  saved.trainer.generator_offset = uint64_t{1} << 63;
  saved.trainer.loss_sum = 0.1 + 0.2;
  saved.trainer.loss_count = 1e-310;  // also what no decimal of usual length holds
  saved.trainer.scale = 0x1p-24;
  saved.trainer.growth_tracker = 1999;
  saved.model.push_back({"norm.counter", from_vector(std::vector<int64_t>{5}, {}, {DType::i64})});
  saved.facts["data"] = "a \"quoted\" name\nwith ünïcode";
  save_checkpoint(path, saved);
  const Checkpoint read = load_checkpoint(path);
  EXPECT_EQ(read.trainer.step, 7);
  EXPECT_EQ(read.trainer.sampler, saved.trainer.sampler);
  EXPECT_EQ(read.trainer.generator_seed, saved.trainer.generator_seed);
  EXPECT_EQ(read.trainer.generator_offset, saved.trainer.generator_offset);
  EXPECT_EQ(read.trainer.loss_sum, saved.trainer.loss_sum);
  EXPECT_EQ(read.trainer.loss_count, saved.trainer.loss_count);
  EXPECT_EQ(read.trainer.scale, saved.trainer.scale);
  EXPECT_EQ(read.trainer.growth_tracker, 1999);
  EXPECT_EQ(read.facts, saved.facts);
  ASSERT_EQ(read.model.size(), 3u);
  EXPECT_EQ(read.model[2].tensor.item(), 5);
  ASSERT_EQ(read.optimizer.size(), 1u);
  EXPECT_EQ(read.optimizer[0].name, "0.momentum");
  // The weights' own file is one that other programs read: plain names, nothing else in it.
  const SafetensorsFile weights = read_safetensors(path);
  ASSERT_EQ(weights.tensors.size(), 3u);
  EXPECT_EQ(weights.tensors[0].name, "fc.weight");
}

TEST(CheckpointFiles, TheStateLiesBesideTheWeights) {
  EXPECT_EQ(state_path_of("a/run.safetensors"), "a/run.state.safetensors");
  EXPECT_EQ(state_path_of("run"), "run.state.safetensors");
  EXPECT_EQ(state_path_of(".safetensors"), ".safetensors.state.safetensors");
}

TEST(CheckpointFiles, AStateWithoutItsWeightsIsStillOneCheckpoint) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  std::filesystem::create_directories(path + "/in the way");
  EXPECT_THROW(save_checkpoint(path, checkpoint_of(3, 30)), DataError);
  EXPECT_EQ(folder.names().size(), 2u);
  expect_holds(path, 3, 30);
}

TEST(CheckpointFiles, AMissingFolderIsReported) {
  const TemporaryFolder folder;
  try {
    save_checkpoint(folder.file("no/such/run.safetensors"), checkpoint_of(1, 1));
    ADD_FAILURE() << "saved into a folder that is not there";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos) << error.what();
  }
}

TEST(CheckpointFiles, AKilledSaveLeavesAWholeFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("file");
  const std::string old_bytes(3 << 20, 'a'), new_bytes(3 << 20, 'b');
  for (int i = 0; i < 12; ++i) {
    write_file_atomically(path, old_bytes);
    const pid_t child = fork();
    if (child == 0) {
      write_file_atomically(path, new_bytes);
      _exit(0);
    }
    usleep(static_cast<useconds_t>(300 * i));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string now = bytes_of(path);
    EXPECT_TRUE(now == old_bytes || now == new_bytes) << now.size() << " bytes";
  }
}

TEST(CheckpointFiles, RunningOutOfMemoryWhilePackingWritesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  Checkpoint checkpoint = checkpoint_of(1, 1);
  // A layout of its own has to be copied before it is written.
  checkpoint.model.push_back(
      {"conv", empty({8, 8, 3, 3}, {DType::f32, Device::cpu(), MemoryFormat::channels_last})});
  allocator_of(Device::cpu()).set_failure_hook([](int64_t, int64_t) { return true; });
  EXPECT_THROW(save_checkpoint(path, checkpoint), OutOfMemory);
  allocator_of(Device::cpu()).set_failure_hook({});
  EXPECT_TRUE(folder.names().empty());
}

TEST(CheckpointFiles, CheckWritableFindsOutBeforeTraining) {
  const TemporaryFolder folder;
  check_writable("--save", folder.file("run.safetensors"));
  EXPECT_TRUE(folder.names().empty()) << "the check left a file";
  EXPECT_THROW(check_writable("--save", folder.file("no/run.safetensors")), InvalidArgument);
  EXPECT_THROW(check_writable("--save", folder.file("")), InvalidArgument);
  EXPECT_THROW(check_writable("--save", ""), InvalidArgument);
  std::filesystem::create_directory(folder.file("folder"));
  EXPECT_THROW(check_writable("--save", folder.file("folder")), InvalidArgument);
  std::filesystem::create_directory(folder.file("other.state.safetensors"));
  EXPECT_THROW(check_writable("--save", folder.file("other.safetensors")), InvalidArgument);
}

}  // namespace
}  // namespace headroom
