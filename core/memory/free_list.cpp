// Size classes over ordered trees.
#include "core/memory/free_list.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace headroom {
namespace {

constexpr int64_t kUnitBytes = 512;  // all block sizes are multiples of this

}  // namespace

// Sizes below 8 units have a class each; above, the three bits below the leading one tell them
// apart. Classes ascend with size: a later class holds only larger pieces.
int FreeList::class_of(int64_t bytes) noexcept {
  const auto units = static_cast<uint64_t>(bytes / kUnitBytes);
  const int shift = std::max(0, static_cast<int>(std::bit_width(units)) - 1 - kStepBits);
  return (shift << kStepBits) + static_cast<int>(units >> shift);
}

FreeList::Node FreeList::make_node() {
  Tree scratch;
  scratch.insert(FreeKey{});
  return scratch.extract(scratch.begin());
}

FreeList::Place FreeList::insert(Node node) noexcept {
  const int cls = class_of(node.value().bytes);
  occupied_[static_cast<size_t>(cls / 64)] |= uint64_t{1} << (cls % 64);
  return trees_[static_cast<size_t>(cls)].insert(std::move(node)).position;
}

FreeList::Node FreeList::extract(Place place) noexcept {
  const int cls = class_of(place->bytes);
  Tree& tree = trees_[static_cast<size_t>(cls)];
  Node node = tree.extract(place);
  if (tree.empty()) occupied_[static_cast<size_t>(cls / 64)] &= ~(uint64_t{1} << (cls % 64));
  return node;
}

Piece* FreeList::best_fit(int64_t bytes) const noexcept {
  const int cls = class_of(bytes);
  const Tree& same = trees_[static_cast<size_t>(cls)];
  const auto found = same.lower_bound(FreeKey{.bytes = bytes});
  return found != same.end() ? found->piece : first_above(cls);
}

Piece* FreeList::after(Place place) const noexcept {
  const int cls = class_of(place->bytes);
  const Place next = std::next(place);
  return next != trees_[static_cast<size_t>(cls)].end() ? next->piece : first_above(cls);
}

Piece* FreeList::first_above(int cls) const noexcept {
  auto word = static_cast<size_t>((cls + 1) / 64);
  uint64_t above = ~uint64_t{0} << ((cls + 1) % 64);
  for (; word < kWords; ++word, above = ~uint64_t{0}) {
    const uint64_t candidates = occupied_[word] & above;
    if (candidates) {
      const size_t next = word * 64 + static_cast<size_t>(std::countr_zero(candidates));
      return trees_[next].begin()->piece;
    }
  }
  return nullptr;
}

int64_t FreeList::largest_bytes() const noexcept {
  for (size_t word = kWords; word-- > 0;) {
    if (!occupied_[word]) continue;
    const size_t cls = word * 64 + static_cast<size_t>(std::bit_width(occupied_[word]) - 1);
    return trees_[cls].rbegin()->bytes;
  }
  return 0;
}

}  // namespace headroom
