// Shapes, strides, broadcasting and memory formats.
#include "core/base/shape.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/message_of.h"

namespace headroom {
namespace {

constexpr MemoryFormat kNchw = MemoryFormat::contiguous, kNhwc = MemoryFormat::channels_last;

using test::message_of;

TEST(Shape, TakesSixAxesAndRefusesSeven) {
  const Shape six{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(six.rank(), 6);
  EXPECT_EQ(numel_of(six), 720);
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7}), InvalidArgument);
  EXPECT_THROW(Shape::filled(7, 1), InvalidArgument);
  Shape grown = six;
  EXPECT_THROW(grown.push_back(7), InvalidArgument);
}

TEST(Shape, EqualityIsOfRankAndExtents) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{2, 3}) == (Shape{3, 2}));
  EXPECT_EQ(to_string(Shape{8, 3, 32, 32}), "[8,3,32,32]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(Shape, CountsElementsAndRefusesWhatNoMemoryHolds) {
  EXPECT_EQ(numel_of({}), 1);
  EXPECT_EQ(numel_of({4, 0, 3}), 0);
  EXPECT_EQ(numel_of({int64_t{1} << 30, int64_t{1} << 30}), int64_t{1} << 60);
  EXPECT_THROW(numel_of({int64_t{1} << 31, int64_t{1} << 30}), InvalidArgument);
  EXPECT_THROW(numel_of({int64_t{1} << 62, int64_t{1} << 62}), InvalidArgument);
  EXPECT_THROW(numel_of({3, -1}), InvalidArgument);
}

// Strides are made of the other extents, so those have to fit also where nothing is stored.
TEST(Shape, AnEmptyAxisDoesNotExcuseTheOthers) {
  EXPECT_EQ(numel_of({0, int64_t{1} << 60}), 0);
  EXPECT_THROW(numel_of({0, int64_t{1} << 60, 16}), InvalidArgument);
}

TEST(Shape, AxesCountFromTheEndWhenNegative) {
  EXPECT_EQ(normalize_axis(-1, 4, "sum"), 3);
  EXPECT_EQ(normalize_axis(0, 4, "sum"), 0);
  const std::string message = message_of([] { normalize_axis(4, 4, "sum"); });
  EXPECT_NE(message.find("sum"), std::string::npos) << message;
  EXPECT_THROW(normalize_axis(-5, 4, "sum"), InvalidArgument);
  EXPECT_THROW(normalize_axis(0, 0, "sum"), InvalidArgument);
}

TEST(Shape, BroadcastsAsNumpyDoes) {
  EXPECT_EQ(broadcast_shapes({8, 1, 6, 1}, {7, 1, 5}, "add"), (Shape{8, 7, 6, 5}));
  EXPECT_EQ(broadcast_shapes({}, {3, 2}, "add"), (Shape{3, 2}));
  EXPECT_EQ(broadcast_shapes({0, 3}, {1}, "add"), (Shape{0, 3}));
  EXPECT_EQ(broadcast_shapes({1, 3}, {0, 1}, "add"), (Shape{0, 3}));
  const std::string message = message_of([] { broadcast_shapes({2, 3}, {2, 4}, "mul"); });
  EXPECT_NE(message.find("mul"), std::string::npos) << message;
  EXPECT_NE(message.find("[2,3]"), std::string::npos) << message;
  EXPECT_NE(message.find("[2,4]"), std::string::npos) << message;
}

TEST(Strides, AreRowMajorInNchwAndChannelsFirstInNhwc) {
  EXPECT_EQ(dense_strides({2, 3, 4, 5}, kNchw), (Strides{60, 20, 5, 1}));
  EXPECT_EQ(dense_strides({2, 3, 4, 5}, kNhwc), (Strides{60, 1, 15, 3}));
}

TEST(Strides, OtherRanksAreContiguousWhateverTheFormat) {
  EXPECT_EQ(dense_strides({2, 3, 4}, kNhwc), (Strides{12, 4, 1}));
  EXPECT_EQ(dense_strides({7}, kNhwc), (Strides{1}));
  EXPECT_EQ(dense_strides({}, kNhwc), (Strides{}));
}

}  // namespace
}  // namespace headroom
