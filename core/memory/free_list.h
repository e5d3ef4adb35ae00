// The free pieces of one pool, ordered for best fit. Part of the allocator's inside.
#pragma once

#include <array>
#include <cstdint>
#include <set>

namespace headroom {

struct Piece;

// Order of the free pieces: best fit first, ties by place, never by address.
struct FreeKey {
  int64_t bytes = 0, segment = 0, offset = 0;
  Piece* piece = nullptr;
  bool operator<(const FreeKey& other) const {
    if (bytes != other.bytes) return bytes < other.bytes;
    if (segment != other.segment) return segment < other.segment;
    return offset < other.offset;
  }
};

// An ordered set of keys, cut into classes of nearly equal size (eight to a power of two) with a
// bit for each that is not empty. One tree over all pieces took twice as long with a thousand of
// them. A key's node leaves with it and is handed back on insertion, so neither allocates or
// throws.
class FreeList {
 public:
  using Tree = std::set<FreeKey>;
  using Node = Tree::node_type;
  using Place = Tree::iterator;

  static Node make_node();

  Place insert(Node node) noexcept;
  Node extract(Place place) noexcept;

  // The piece that fits `bytes` best: the smallest that is large enough; nullptr if none is.
  Piece* best_fit(int64_t bytes) const noexcept;
  // The one that follows in that order; nullptr after the last.
  Piece* after(Place place) const noexcept;
  int64_t largest_bytes() const noexcept;  // 0 when there is none

 private:
  static constexpr int kStepBits = 3;
  static constexpr int kWords = 7;  // 448 classes; any int64_t of bytes has one
  static int class_of(int64_t bytes) noexcept;
  Piece* first_above(int cls) const noexcept;

  std::array<Tree, kWords * 64> trees_;
  std::array<uint64_t, kWords> occupied_{};
};

}  // namespace headroom
