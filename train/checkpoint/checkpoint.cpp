// Checkpoints: the state file is a safetensors file too, its scalars in the metadata.
#include "train/checkpoint/checkpoint.h"

#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "train/checkpoint/atomic_file.h"
#include "train/checkpoint/safetensors.h"

namespace headroom {
namespace {

constexpr const char* kFormat = "headroom-trainer-state-1";
const std::string kModelPrefix = "model/";
const std::string kOptimizerPrefix = "optimizer/";
const std::string kFactPrefix = "fact.";

// Numbers as text; doubles by their bits, so that they come back exactly.
using Metadata = std::map<std::string, std::string>;

void put(Metadata& to, const char* key, int64_t value) { to[key] = std::to_string(value); }
void put(Metadata& to, const char* key, uint64_t value) { to[key] = std::to_string(value); }
void put(Metadata& to, const char* key, double value) {
  put(to, key, std::bit_cast<uint64_t>(value));
}

template <class T>
T get_integer(const Metadata& from, const char* key, const std::string& file) {
  const auto entry = from.find(key);
  CHECK_ARG(entry != from.end(), file, ": the trainer state lacks '", key, "'");
  const std::string& text = entry->second;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CHECK_ARG(error == std::errc() && end == text.data() + text.size(), file, ": '", key,
            "' is no number: '", text, "'");
  return value;
}

double get_double(const Metadata& from, const char* key, const std::string& file) {
  return std::bit_cast<double>(get_integer<uint64_t>(from, key, file));
}

Metadata pack(const TrainerState& s) {
  Metadata out;
  out["format"] = kFormat;
  put(out, "step", s.step);
  put(out, "sampler.epoch", s.sampler.epoch);
  put(out, "sampler.position", s.sampler.position);
  put(out, "generator.seed", s.generator_seed);
  put(out, "generator.offset", s.generator_offset);
  put(out, "loss.sum", s.loss_sum);
  put(out, "loss.count", s.loss_count);
  put(out, "scaler.scale", s.scale);
  put(out, "scaler.growth_tracker", s.growth_tracker);
  return out;
}

TrainerState unpack(const Metadata& from, const std::string& file) {
  TrainerState s;
  s.step = get_integer<int64_t>(from, "step", file);
  s.sampler.epoch = get_integer<int64_t>(from, "sampler.epoch", file);
  s.sampler.position = get_integer<int64_t>(from, "sampler.position", file);
  s.generator_seed = get_integer<uint64_t>(from, "generator.seed", file);
  s.generator_offset = get_integer<uint64_t>(from, "generator.offset", file);
  s.loss_sum = get_double(from, "loss.sum", file);
  s.loss_count = get_double(from, "loss.count", file);
  s.scale = get_double(from, "scaler.scale", file);
  s.growth_tracker = get_integer<int64_t>(from, "scaler.growth_tracker", file);
  CHECK_ARG(s.step >= 0, file, ": step ", s.step, " is negative");
  CHECK_ARG(std::isfinite(s.loss_count) && s.loss_count >= 0, file, ": loss.count ", s.loss_count,
            " is no count");
  return s;
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

std::string state_path_of(const std::string& path) {
  const std::string suffix = ".safetensors";
  const bool has_suffix = path.size() > suffix.size() &&
                          path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0;
  return (has_suffix ? path.substr(0, path.size() - suffix.size()) : path) + ".state" + suffix;
}

std::string state_path_to_read(const std::string& path) {
  const std::string state = state_path_of(path);
  std::error_code error;
  // A checkpoint may have such a name as well, and then has a state file of its own.
  const bool is_state = path.ends_with(".state.safetensors") &&
                        std::filesystem::exists(path, error) &&
                        !std::filesystem::exists(state, error);
  return is_state ? path : state;
}

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& entry : checkpoint.model) {
    tensors.push_back({kModelPrefix + entry.name, entry.tensor});
  }
  for (const OptimizerState& entry : checkpoint.optimizer) {
    tensors.push_back({kOptimizerPrefix + entry.name, entry.tensor});
  }
  Metadata metadata = pack(checkpoint.trainer);
  for (const auto& [name, value] : checkpoint.facts) metadata[kFactPrefix + name] = value;
  // Both are made before either is written, so that running out of memory writes nothing.
  const std::string state = to_safetensors(tensors, metadata);
  const std::string weights = to_safetensors(checkpoint.model, checkpoint.facts);
  write_file_atomically(state_path_of(path), state);
  write_file_atomically(path, weights);
}

Checkpoint load_checkpoint(const std::string& path) {
  const std::string file = state_path_to_read(path);
  return checkpoint_from(read_safetensors(file), file);
}

Checkpoint checkpoint_from(const SafetensorsFile& content, const std::string& file) {
  const auto format = content.metadata.find("format");
  CHECK_ARG(format != content.metadata.end() && format->second == kFormat, file,
            ": is no trainer state of this program (format '",
            format == content.metadata.end() ? "" : format->second, "', needed '", kFormat, "')");
  Checkpoint out;
  out.trainer = unpack(content.metadata, file);
  for (const auto& [name, value] : content.metadata) {
    if (starts_with(name, kFactPrefix)) out.facts[name.substr(kFactPrefix.size())] = value;
  }
  for (const NamedTensor& entry : content.tensors) {
    if (starts_with(entry.name, kModelPrefix)) {
      out.model.push_back({entry.name.substr(kModelPrefix.size()), entry.tensor});
    } else if (starts_with(entry.name, kOptimizerPrefix)) {
      out.optimizer.push_back({entry.name.substr(kOptimizerPrefix.size()), entry.tensor});
    } else {
      throw InvalidArgument(detail::concat(file, ": unknown entry '", entry.name, "'"));
    }
  }
  return out;
}

void check_distinct(const std::vector<std::pair<std::string, std::string>>& files) {
  namespace fs = std::filesystem;
  std::map<fs::path, std::string> taken;
  for (const auto& [flag, path] : files) {
    if (path.empty()) continue;
    // Made absolute first: what begins with a name that is not there yet would stay relative.
    std::error_code error;
    const fs::path file = fs::weakly_canonical(fs::absolute(path, error), error);
    const auto [other, is_new] = taken.try_emplace(file, flag);
    const bool same_run = other->second == "--save" && flag == "--resume";
    CHECK_ARG(is_new || same_run, flag, " ", path, ": ", other->second, " writes the same file");
  }
}

void check_writable(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  CHECK_ARG(!path.empty(), flag, ": needs a file name");
  for (const std::string& file : {path, state_path_of(path)}) {
    CHECK_ARG(!fs::is_directory(file, error), flag, " ", path, ": needs a file name, and ", file,
              " is a folder");
    CHECK_ARG(!fs::exists(file, error) || fs::is_regular_file(file, error), flag, " ", path,
              ": would replace ", file, ", which is no regular file");
  }
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  CHECK_ARG(fs::is_directory(folder, error), flag, " ", path, ": there is no folder ",
            folder.string());
  CHECK_ARG(access(folder.c_str(), W_OK | X_OK) == 0, flag, " ", path, ": the folder ",
            folder.string(), " cannot be written: ", std::strerror(errno));
}

}  // namespace headroom
