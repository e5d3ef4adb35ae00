// What a person sees while a comparison runs: one line that is redrawn on a terminal, elsewhere a
// line per finished row.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "train/compare/comparison.h"
#include "train/display.h"

namespace headroom {

class CompareProgress : public CompareObserver {
 public:
  CompareProgress(std::FILE* stream, size_t rows, DisplayOptions options);
  ~CompareProgress() override;
  CompareProgress(const CompareProgress&) = delete;
  CompareProgress& operator=(const CompareProgress&) = delete;

  void on_row_begin(size_t index, const Configuration& row) override;
  void on_row_progress(const RowProgress& progress) override;
  void on_row_end(const ComparedRow& row) override;

 private:
  void draw(const std::string& line);
  void clear_line();

  std::FILE* stream_;
  size_t rows_;
  DisplayOptions options_;
  std::string head_;  // "3/17 amp"
  double began_ = 0;
  bool line_open_ = false;
};

}  // namespace headroom
