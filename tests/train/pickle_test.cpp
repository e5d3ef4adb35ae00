// Pickles, read by Python itself.
#include "train/pickle.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/base/error.h"
#include "tests/support/python.h"
#include "tests/train/trainer_run.h"

namespace headroom {
namespace {

using test::has_python;
using test::run_python;
using test::TemporaryFolder;

// What Python's repr() makes of the value in a pickle.
std::string read_by_python(const std::string& pickle) {
  const TemporaryFolder folder;
  const std::string file = folder.file("value.pickle");
  std::ofstream(file, std::ios::binary) << pickle;
  return run_python({"-c",
                     "import pickle, sys\n"
                     "print(ascii(pickle.load(open(sys.argv[1], 'rb'))))",
                     file});
}

TEST(Pickle, HoldsEveryKindOfValue) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  PickleWriter out;
  out.begin_dict();
  out.text("none");
  out.none();
  out.text("flags");
  out.begin_list();
  out.boolean(true);
  out.boolean(false);
  out.end_list();
  out.text("pair");
  out.begin_pair();
  out.integer(0);
  out.text("none");
  out.end_pair();
  out.text("empty");
  out.begin_list();
  out.end_list();
  out.text("nothing");
  out.begin_dict();
  out.end_dict();
  out.end_dict();
  EXPECT_EQ(read_by_python(out.finish()),
            "{'none': None, 'flags': [True, False], 'pair': (0, 'none'), 'empty': [], "
            "'nothing': {}}\n");
}

TEST(Pickle, HoldsWholeNumbersUpToSixtyFourBits) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  PickleWriter out;
  std::string expected = "[";
  out.begin_list();
  for (const int64_t value :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65535}, int64_t{65536}, int64_t{-1},
        int64_t{-129}, (int64_t{1} << 31) - 1, int64_t{1} << 31, -(int64_t{1} << 31),
        -(int64_t{1} << 31) - 1, int64_t{1} << 47, -(kLowest + 1), kLowest}) {
    out.integer(value);
    expected += std::to_string(value) + ", ";
  }
  out.unsigned_integer(uint64_t{1} << 63);
  out.unsigned_integer(~uint64_t{0});
  out.end_list();
  EXPECT_EQ(read_by_python(out.finish()),
            expected + "9223372036854775808, 18446744073709551615]\n");
}

TEST(Pickle, HoldsTextOfAnyBytes) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  PickleWriter out;
  out.begin_list();
  for (const char* text : {"", "it's", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
                           "a\xFF"
                           "b",
                           "\xE2\x82", "\xED\xA0\x80", "\xC0\xAF"}) {
    out.text(text);
  }
  out.end_list();
  EXPECT_EQ(read_by_python(out.finish()),
            "['', \"it's\", '\\xe9\\u20ac\\U0001f600', 'a\\ufffdb', '\\ufffd\\ufffd', "
            "'\\ufffd\\ufffd\\ufffd', '\\ufffd\\ufffd']\n");
}

// More than one batch, more remembered values than one byte counts, and an object that recurs.
TEST(Pickle, HoldsLongListsAndRecallsValues) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  PickleWriter out;
  out.begin_list();
  out.begin_list();
  out.text("shared");
  out.end_list();
  const uint32_t shared = out.remember();
  for (int i = 0; i < 2500; ++i) out.text("text " + std::to_string(i % 700));
  out.recall(shared);
  out.end_list();
  const TemporaryFolder folder;
  const std::string file = folder.file("value.pickle");
  std::ofstream(file, std::ios::binary) << out.finish();
  EXPECT_EQ(run_python({"-c",
                        "import pickle, sys\n"
                        "v = pickle.load(open(sys.argv[1], 'rb'))\n"
                        "w = ['text %d' % (i % 700) for i in range(2500)]\n"
                        "print(v[0] is v[-1], v[0], v[1:-1] == w)",
                        file}),
            "True ['shared'] True\n");
}

TEST(Pickle, RefusesWhatIsNotOneWholeValue) {
  PickleWriter nothing;
  EXPECT_THROW(nothing.finish(), Error);
  PickleWriter open;
  open.begin_list();
  EXPECT_THROW(open.finish(), Error);
  EXPECT_THROW(open.end_dict(), Error);
  PickleWriter half;
  half.begin_dict();
  half.text("key");
  EXPECT_THROW(half.end_dict(), Error);
  PickleWriter two;
  two.integer(1);
  EXPECT_THROW(two.integer(2), Error);
}

}  // namespace
}  // namespace headroom
