// The policy of expandable segments written a second time, from the blocks in use and the set of
// mapped pages alone: every other piece is worked out afresh when it is asked for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tests/core/memory/policy_model.h"

namespace headroom::testing {

class ExpandableModel : public ModelBooks {
 public:
  std::optional<Handle> allocate(int64_t bytes, int tag) {
    const int64_t need = bytes == 0 ? 512 : (bytes + 511) / 512 * 512;
    Pool& pool = pools_[need > 1048576];
    int64_t at = best_fit(pool, need);
    if (at < 0) {
      if (pool.number == 0) pool.number = ++made_;
      at = grow(pool, need);
      if (at < 0) {
        empty_cache();
        at = grow(pool, need);
      }
    }
    if (at < 0) {
      ++failures;
      return std::nullopt;
    }
    pool.live[at] = {at, need, true, tag};
    book(tag, need);
    note_peaks(count());
    return Handle{pool.number, at};
  }

  void free(Handle handle) {
    Pool& pool = pool_of(handle);
    const Cell cell = pool.live.at(handle.offset);
    book(cell.tag, -cell.bytes);
    pool.live.erase(handle.offset);
  }

  void retag(Handle handle, int tag) {
    Cell& cell = pool_of(handle).live.at(handle.offset);
    book(cell.tag, -cell.bytes);
    book(tag, cell.bytes);
    cell.tag = tag;
  }

  // A page stays if a block touches it.
  void empty_cache() {
    for (Pool& pool : pools_) {
      std::set<int64_t> touched;
      for (const auto& [offset, cell] : pool.live) {
        for (int64_t page = offset / pool.page; page * pool.page < offset + cell.bytes; ++page) {
          touched.insert(page);
        }
      }
      pool.mapped = touched;
    }
  }

  void reset_peaks() { ModelBooks::reset_peaks(count()); }

  Counts count() const {
    Counts out;
    for (const Pool& pool : pools_) {
      out.reserved += static_cast<int64_t>(pool.mapped.size()) * pool.page;
      for (const Piece& piece : pieces_of(pool)) {
        if (piece.kind == Kind::used) {
          out.allocated += piece.bytes();
          ++out.blocks;
        } else if (piece.kind == Kind::free) {
          const int64_t first = (piece.begin + pool.page - 1) / pool.page;
          const int64_t pages = std::max<int64_t>(0, piece.end / pool.page - first);
          const int64_t stuck = piece.bytes() - pages * pool.page;
          out.split_bytes += stuck;
          out.split_count += stuck > 0;
        }
      }
    }
    return out;
  }

  // Each run of mapped pages.
  std::vector<Segment> layout() const {
    std::vector<Segment> out;
    for (const Pool& pool : pools_) {
      bool in_run = false;
      for (const Piece& piece : pieces_of(pool)) {
        const bool is_mapped = piece.kind != Kind::unmapped;
        if (is_mapped && !in_run) out.push_back({pool.number, 0, pool.page == kSmallPage, {}});
        in_run = is_mapped;
        if (!is_mapped) continue;
        out.back().bytes += piece.bytes();
        out.back().cells.push_back({piece.begin, piece.bytes(), piece.kind == Kind::used});
      }
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Segment& a, const Segment& b) { return a.number < b.number; });
    return out;
  }

 private:
  static constexpr int64_t kSmallPage = 2097152, kLargePage = 20971520;
  static constexpr int64_t kEndless = int64_t{1} << 55;

  enum class Kind { used, free, unmapped };
  struct Piece {
    int64_t begin, end;
    Kind kind;
    int64_t bytes() const { return end - begin; }
  };
  struct Pool {
    int64_t page;
    int64_t number = 0;
    std::map<int64_t, Cell> live{};
    std::set<int64_t> mapped{};
  };

  Pool& pool_of(Handle handle) { return pools_[pools_[0].number != handle.segment]; }

  // From address 0 to the endless unmapped end; neighbours are of different kinds, or blocks.
  static std::vector<Piece> pieces_of(const Pool& pool) {
    std::vector<Piece> out;
    const auto add = [&](int64_t begin, int64_t end, Kind kind) {
      const bool continues = !out.empty() && out.back().kind == kind && kind != Kind::used;
      if (continues) {
        out.back().end = end;
      } else if (begin < end) {
        out.push_back({begin, end, kind});
      }
    };
    const auto add_gap = [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t page = begin / pool.page, stop = std::min(end, (page + 1) * pool.page);
        add(begin, stop, pool.mapped.count(page) ? Kind::free : Kind::unmapped);
        begin = stop;
      }
    };
    int64_t at = 0;
    for (const auto& [offset, cell] : pool.live) {
      add_gap(at, offset);
      at = offset + cell.bytes;
      add(offset, at, Kind::used);
    }
    const int64_t end = pool.mapped.empty() ? 0 : (*pool.mapped.rbegin() + 1) * pool.page;
    add_gap(at, end);
    add(std::max(at, end), kEndless, Kind::unmapped);
    return out;
  }

  // Where a request goes without new pages; -1 if nowhere.
  static int64_t best_fit(const Pool& pool, int64_t need) {
    struct Candidate {
      int64_t bytes, begin, reach;
    };
    std::vector<Candidate> candidates;
    const std::vector<Piece> pieces = pieces_of(pool);
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].kind != Kind::free || pieces[i].bytes() < need) continue;
      const bool can_grow = i + 1 < pieces.size() && pieces[i + 1].kind == Kind::unmapped;
      const int64_t end = can_grow ? pieces[i + 1].end : pieces[i].end;
      const int64_t reach = end == kEndless ? kEndless : end - pieces[i].begin;
      candidates.push_back({pieces[i].bytes(), pieces[i].begin, reach});
    }
    if (candidates.empty()) return -1;
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.begin < b.begin;
    });
    size_t best = 0;
    while (best + 1 < candidates.size() && candidates[best + 1].reach < candidates[best].reach) {
      ++best;
    }
    return candidates[best].begin;
  }

  // Maps what the first place lacks that pages can make large enough; -1 if the limit forbids it.
  int64_t grow(Pool& pool, int64_t need) {
    const std::vector<Piece> pieces = pieces_of(pool);
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].kind != Kind::unmapped) continue;
      const size_t first = i > 0 && pieces[i - 1].kind == Kind::free ? i - 1 : i;
      int64_t end = pieces[first].begin;
      for (size_t j = first; j < pieces.size() && pieces[j].kind != Kind::used; ++j) {
        end = pieces[j].end;
      }
      const int64_t begin = pieces[first].begin;
      if (end - begin < need) continue;
      std::set<int64_t> wanted = pool.mapped;
      for (int64_t page = begin / pool.page; page * pool.page < begin + need; ++page) {
        wanted.insert(page);
      }
      const int64_t more = static_cast<int64_t>(wanted.size() - pool.mapped.size()) * pool.page;
      if (count().reserved + more > limit) return -1;
      pool.mapped = wanted;
      return begin;
    }
    return -1;
  }

  int64_t made_ = 0;
  std::array<Pool, 2> pools_ = {Pool{kSmallPage}, Pool{kLargePage}};
};

}  // namespace headroom::testing
