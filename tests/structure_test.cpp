// The rules of the source tree that a compiler does not enforce: which folder may include which,
// where the headers of libraries may appear, how long a file may be.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace headroom {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

struct Source {
  std::string path;  // from the repository's root
  std::vector<std::string> lines;
  std::vector<std::string> includes;

  bool is_header() const { return path.ends_with(".h") || path.ends_with(".cuh"); }
  bool is_under(const std::string& folder) const { return path.starts_with(folder + "/"); }
};

// What stands between quotes or angle brackets of an include line; empty for other lines.
std::string included_by(const std::string& line) {
  const size_t hash = line.find_first_not_of(" \t");
  if (hash == std::string::npos || line[hash] != '#') return {};
  const size_t word = line.find_first_not_of(" \t", hash + 1);
  if (word == std::string::npos || line.compare(word, 7, "include") != 0) return {};
  const size_t open = line.find_first_of("\"<", word);
  if (open == std::string::npos) return {};
  const size_t close = line.find_first_of("\">", open + 1);
  return line.substr(open + 1, close - open - 1);
}

Source read_source(const std::string& path) {
  Source source;
  source.path = path;
  std::ifstream in(fs::path(HEADROOM_SOURCE_DIR) / path);
  for (std::string line; std::getline(in, line);) {
    source.lines.push_back(line);
    if (const std::string name = included_by(line); !name.empty()) {
      source.includes.push_back(name);
    }
  }
  return source;
}

// The files below `folders` whose extension is one of `extensions`.
std::vector<Source> read_sources(const std::vector<const char*>& folders, const Names& extensions) {
  std::vector<Source> out;
  const fs::path root = HEADROOM_SOURCE_DIR;
  for (const char* folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !extensions.count(entry.path().extension())) continue;
      out.push_back(read_source(fs::relative(entry.path(), root).generic_string()));
    }
  }
  return out;
}

// C++ and CUDA.
const std::vector<Source>& sources() {
  static const std::vector<Source> all =
      read_sources({"core", "kernels", "nn", "optim", "train", "examples", "tests"},
                   {".h", ".cpp", ".cu", ".cuh"});
  return all;
}

// Shell and Python.
const std::vector<Source>& scripts() {
  static const std::vector<Source> all = [] {
    std::vector<Source> out = read_sources({"cmake", "tests"}, {".sh", ".py"});
    for (const char* path : {"dev", ".ci/run"}) out.push_back(read_source(path));
    return out;
  }();
  return all;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }

// "ops" of "core/ops/conv.h"
std::string part_of(const std::string& path) {
  const size_t begin = path.find('/') + 1;
  return path.substr(begin, path.find('/', begin) - begin);
}

TEST(Structure, TheTestSeesTheSources) {
  EXPECT_GT(sources().size(), 150u);
  size_t includes = 0;
  for (const Source& source : sources()) includes += source.includes.size();
  EXPECT_GT(includes, 500u);
  EXPECT_GE(scripts().size(), 5u);
  EXPECT_EQ(included_by("#include \"core/base/error.h\""), "core/base/error.h");
  EXPECT_EQ(included_by("  #  include <vector>  // why"), "vector");
  EXPECT_EQ(included_by("// #include \"core/base/error.h\""), "");
}

TEST(Structure, FoldersIncludeOnlyWhatTheyMayKnow) {
  const std::map<std::string, Names> may_know = {
      {"core", {"core"}},
      {"kernels", {"core", "kernels"}},
      {"nn", {"core", "nn"}},
      {"optim", {"core", "optim"}},
      {"train", {"core", "nn", "optim", "train"}},
      {"examples", {"core", "nn", "optim", "train"}},
  };
  for (const Source& source : sources()) {
    const auto rule = may_know.find(folder_of(source.path));
    if (rule == may_know.end()) continue;  // tests may know everything
    for (const std::string& name : source.includes) {
      const std::string folder = folder_of(name);
      const bool ours = may_know.count(folder) || folder == "tests";
      if (!ours || rule->second.count(folder)) continue;
      // Programs register the kernels and may name their libraries; nothing else knows of kernels.
      const bool is_program = source.is_under("examples") || source.path.starts_with("train/main");
      const Names of_programs = {"kernels/register.h", "kernels/cuda/library_versions.h"};
      EXPECT_TRUE(is_program && of_programs.count(name)) << source.path << " includes " << name;
    }
  }
}

TEST(Structure, CoreIsLayered) {
  const std::vector<std::string> layers = {"base", "memory", "tensor", "autograd", "ops"};
  const auto layer_of = [&](const std::string& path) {
    return std::find(layers.begin(), layers.end(), part_of(path)) - layers.begin();
  };
  // Headers keep the order without exception. A tensor has to fill, copy and read itself and the
  // engine to add, so sources of both call the kernel contract, and these need one thing more.
  const std::map<std::string, Names> exceptions = {
      {"core/tensor/tensor.cpp", {"core/autograd/node.h"}},        // the leaf's accumulator
      {"core/autograd/autocast.cpp", {"core/ops/elementwise.h"}},  // cast()
  };
  for (const Source& source : sources()) {
    if (!source.is_under("core")) continue;
    ASSERT_LT(layer_of(source.path), static_cast<std::ptrdiff_t>(layers.size())) << source.path;
    for (const std::string& name : source.includes) {
      if (folder_of(name) != "core" || layer_of(name) <= layer_of(source.path)) continue;
      const bool calls_kernels =
          !source.is_header() && name == "core/ops/contract.h" &&
          (part_of(source.path) == "tensor" || part_of(source.path) == "autograd");
      const auto exception = exceptions.find(source.path);
      const bool is_known = exception != exceptions.end() && exception->second.count(name);
      EXPECT_TRUE(calls_kernels || is_known) << source.path << " includes " << name;
    }
  }
}

TEST(Structure, BackendsKnowNothingOfEachOther) {
  for (const Source& source : sources()) {
    for (const std::string& name : source.includes) {
      EXPECT_FALSE(source.is_under("kernels/cpu") && name.starts_with("kernels/cuda/"))
          << source.path << " includes " << name;
      EXPECT_FALSE(source.is_under("kernels/cuda") && name.starts_with("kernels/cpu/"))
          << source.path << " includes " << name;
    }
  }
}

TEST(Structure, LibrariesAppearOnlyWhereTheyBelong) {
  for (const Source& source : sources()) {
    const bool cpu_kernel = source.is_under("kernels/cpu") && !source.is_header();
    const bool cuda_code = source.is_under("kernels/cuda");
    const bool cuda_test =
        source.path.starts_with("tests/kernels/cuda_") || source.path.starts_with("tests/bench/");
    for (const std::string& name : source.includes) {
      const auto is_of = [&](const char* prefix) { return name.starts_with(prefix); };
      if (is_of("Eigen/")) {
        EXPECT_TRUE(cpu_kernel) << source.path << " includes " << name;
      }
      if (is_of("cuda") || is_of("cublas") || is_of("cudnn") || is_of("cub/") || is_of("thrust/") ||
          is_of("cooperative_groups")) {
        EXPECT_TRUE(cuda_code || cuda_test) << source.path << " includes " << name;
      }
      if (is_of("cudnn") || is_of("cublas")) {
        EXPECT_TRUE(source.path.ends_with(".cpp")) << source.path << " includes " << name;
      }
      // What a .cu file includes, nvcc has to read.
      if (is_of("fmt/")) {
        EXPECT_FALSE(source.is_header()) << source.path << " includes " << name;
      }
      if (is_of("omp.h")) {
        EXPECT_EQ(source.path, "core/base/parallel.cpp");
      }
      if (is_of("CLI/")) {
        EXPECT_TRUE(source.is_under("train")) << source.path;
      }
    }
  }
}

TEST(Structure, OnlyProgramsRegisterKernels) {
  for (const Source& source : sources()) {
    const bool may = source.is_under("examples") || source.is_under("tests") ||
                     source.path.starts_with("train/main") || source.is_under("kernels");
    if (may) continue;
    for (const std::string& line : source.lines) {
      const size_t comment = line.find("//");
      EXPECT_EQ(line.substr(0, comment).find("register_kernels("), std::string::npos)
          << source.path;
    }
  }
}

void expect_short_and_finished(const Source& source) {
  constexpr size_t kMaxLines = 400;
  constexpr size_t kMaxColumns = 100;
  const std::vector<std::string> unfinished = {
      "TO"
      "DO",
      "FIX"
      "ME",
      "XX"
      "X"};
  EXPECT_LE(source.lines.size(), kMaxLines) << source.path;
  for (size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    // Characters, not bytes: continuation bytes of UTF-8 take no column.
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    });
    const bool is_include = !included_by(line).empty();
    EXPECT_TRUE(is_include || static_cast<size_t>(columns) <= kMaxColumns)
        << source.path << ":" << i + 1 << " has " << columns << " columns";
    for (const std::string& mark : unfinished) {
      EXPECT_EQ(line.find(mark), std::string::npos) << source.path << ":" << i + 1;
    }
  }
}

TEST(Structure, FilesAreShortAndFinished) {
  for (const Source& source : sources()) expect_short_and_finished(source);
  for (const Source& script : scripts()) expect_short_and_finished(script);
  const std::vector<Source> pages = read_sources({"train/pages"}, {".html", ".css", ".js"});
  EXPECT_GE(pages.size(), 4u);
  for (const Source& page : pages) expect_short_and_finished(page);
}

TEST(Structure, FilesBeginWithWhatTheyAreFor) {
  for (const Source& source : sources()) {
    ASSERT_FALSE(source.lines.empty()) << source.path;
    EXPECT_TRUE(source.lines[0].starts_with("// ")) << source.path;
    if (!source.is_header()) continue;
    EXPECT_NE(std::find(source.lines.begin(), source.lines.end(), "#pragma once"),
              source.lines.end())
        << source.path;
  }
  for (const Source& script : scripts()) {
    ASSERT_GE(script.lines.size(), 2u) << script.path;
    const std::string& first = script.lines[script.lines[0].starts_with("#!") ? 1 : 0];
    const char* opening = script.path.ends_with(".py") ? "\"\"\"" : "# ";
    EXPECT_TRUE(first.starts_with(opening)) << script.path;
  }
}

}  // namespace
}  // namespace headroom
