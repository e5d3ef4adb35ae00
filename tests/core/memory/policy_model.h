// The allocator's policy written a second time, as plainly as possible: vectors, linear searches,
// and statistics counted afresh from the state. Slow, and independent of the real one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace headroom::testing {

// What the models of both kinds of segments have: their limit, and what happened so far.
struct ModelBooks {
  struct Cell {
    int64_t offset, bytes;
    bool used;
    int tag = 0;
  };
  struct Segment {
    int64_t number, bytes;
    bool small;
    std::vector<Cell> cells;
    bool whole() const { return cells.size() == 1 && !cells[0].used; }
  };
  struct Handle {
    int64_t segment, offset;
    bool operator==(const Handle&) const = default;
  };
  struct Counts {
    int64_t allocated = 0, reserved = 0, split_bytes = 0, split_count = 0, blocks = 0;
    bool operator==(const Counts&) const = default;
  };

  int64_t limit = int64_t{1} << 60;
  int64_t failures = 0;
  int64_t peak_allocated = 0, peak_reserved = 0;
  std::array<int64_t, 16> by_tag{}, by_tag_at_peak{};

  void book(int tag, int64_t bytes) { by_tag[static_cast<size_t>(tag)] += bytes; }
  void note_peaks(const Counts& now) {
    peak_reserved = std::max(peak_reserved, now.reserved);
    if (now.allocated <= peak_allocated) return;
    peak_allocated = now.allocated;
    by_tag_at_peak = by_tag;
  }
  void reset_peaks(const Counts& now) {
    peak_allocated = now.allocated;
    peak_reserved = now.reserved;
    by_tag_at_peak = by_tag;
  }
};

class PolicyModel : public ModelBooks {
 public:
  std::vector<Segment> segments;  // by number

  std::vector<Segment> layout() const { return segments; }

  std::optional<Handle> allocate(int64_t bytes, int tag) {
    const int64_t need = bytes == 0 ? 512 : (bytes + 511) / 512 * 512;
    const bool small = need <= 1048576;
    Segment* home = nullptr;
    size_t at = 0;
    find(need, small, home, at);
    if (!home) {
      const int64_t size = small             ? 2097152
                           : need < 10485760 ? 20971520
                                             : (need + 2097151) / 2097152 * 2097152;
      if (!make_room(size)) {
        ++failures;
        return std::nullopt;
      }
      segments.push_back({++made_, size, small, {{0, size, false}}});
      note_peaks(count());
      home = &segments.back();
      at = 0;
    }
    const int64_t rest = home->cells[at].bytes - need;
    if (small ? rest >= 512 : rest > 1048576) {
      home->cells[at].bytes = need;
      const Cell tail{home->cells[at].offset + need, rest, false};
      home->cells.insert(home->cells.begin() + static_cast<ptrdiff_t>(at) + 1, tail);
    }
    Cell& cell = home->cells[at];
    cell.used = true;
    cell.tag = tag;
    book(tag, cell.bytes);
    note_peaks(count());
    return Handle{home->number, cell.offset};
  }

  void free(Handle handle) {
    auto [segment, at] = locate(handle);
    std::vector<Cell>& cells = segment->cells;
    book(cells[at].tag, -cells[at].bytes);
    cells[at].used = false;
    for (size_t i = 0; i + 1 < cells.size();) {
      if (cells[i].used || cells[i + 1].used) {
        ++i;
        continue;
      }
      cells[i].bytes += cells[i + 1].bytes;
      cells.erase(cells.begin() + static_cast<ptrdiff_t>(i) + 1);
    }
  }

  void retag(Handle handle, int tag) {
    auto [segment, at] = locate(handle);
    Cell& cell = segment->cells[at];
    book(cell.tag, -cell.bytes);
    book(tag, cell.bytes);
    cell.tag = tag;
  }

  void empty_cache() {
    std::erase_if(segments, [](const Segment& segment) { return segment.whole(); });
  }

  void reset_peaks() { ModelBooks::reset_peaks(count()); }

  Counts count() const {
    Counts out;
    for (const Segment& segment : segments) {
      out.reserved += segment.bytes;
      for (const Cell& cell : segment.cells) {
        if (cell.used) {
          out.allocated += cell.bytes;
          ++out.blocks;
        } else if (segment.cells.size() > 1) {
          out.split_bytes += cell.bytes;
          ++out.split_count;
        }
      }
    }
    return out;
  }

 private:
  void find(int64_t need, bool small, Segment*& home, size_t& at) {
    int64_t best = 0;
    for (Segment& segment : segments) {
      if (segment.small != small) continue;
      for (size_t i = 0; i < segment.cells.size(); ++i) {
        const Cell& cell = segment.cells[i];
        if (cell.used || cell.bytes < need || (home && cell.bytes >= best)) continue;
        best = cell.bytes;
        home = &segment;
        at = i;
      }
    }
  }

  // Of all sets of whole segments that free enough, the one with the fewest, then the one that
  // gives its largest members by number and as its smallest member the smallest possible.
  bool make_room(int64_t size) {
    const int64_t over = count().reserved + size - limit;
    if (over <= 0) return true;
    std::vector<size_t> whole;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].whole()) whole.push_back(i);
    }
    std::stable_sort(whole.begin(), whole.end(),
                     [&](size_t a, size_t b) { return segments[a].bytes > segments[b].bytes; });
    std::vector<size_t> chosen;
    int64_t sum = 0;
    while (sum < over && chosen.size() < whole.size()) {
      sum += segments[whole[chosen.size()]].bytes;
      chosen.push_back(whole[chosen.size()]);
    }
    if (sum >= over) {
      const int64_t without_last = sum - segments[chosen.back()].bytes;
      for (size_t i = chosen.size(); i < whole.size(); ++i) {
        const int64_t bytes = segments[whole[i]].bytes;
        if (without_last + bytes >= over && bytes < segments[chosen.back()].bytes) {
          chosen.back() = whole[i];
        }
      }
    }
    std::sort(chosen.rbegin(), chosen.rend());
    for (const size_t i : chosen) segments.erase(segments.begin() + static_cast<ptrdiff_t>(i));
    return count().reserved + size <= limit;
  }

  std::pair<Segment*, size_t> locate(Handle handle) {
    for (Segment& segment : segments) {
      if (segment.number != handle.segment) continue;
      for (size_t i = 0; i < segment.cells.size(); ++i) {
        if (segment.cells[i].offset == handle.offset) return {&segment, i};
      }
    }
    return {nullptr, 0};
  }

  int64_t made_ = 0;
};

}  // namespace headroom::testing
