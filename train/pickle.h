// Python pickles of plain data, as PyTorch's tools read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headroom {

// Writes a pickle of protocol 2, value by value: None, bool, int, str, list, tuple of two, dict. A
// string that occurs again refers to the first. PyTorch's viewer reads pickles with a small reader
// of its own, which knows the opcodes used here and takes no list of a hundred thousand elements in
// one piece: lists go in batches, as Python's own pickles have them.
class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(int64_t value);
  // Any 64 bits as a number from 0; Python's ints have no end.
  void unsigned_integer(uint64_t value);
  // UTF-8. Bytes that are none become U+FFFD, since readers refuse the whole file for them.
  void text(std::string_view value);

  // Between begin and end come the elements, each one value. Of a dict: key, value, key, value; of
  // a pair: two.
  void begin_list();
  void end_list();
  void begin_dict();
  void end_dict();
  void begin_pair();
  void end_pair();

  // remember() gives the value written last a number; recall() stands for that value again, as the
  // same object.
  uint32_t remember();
  void recall(uint32_t number);

  // The pickle of the one value written. Throws Error if that is not what was written, or something
  // is still open.
  std::string finish();

 private:
  enum class Kind : uint8_t { list, dict, pair };
  struct Open {
    Kind kind;
    int64_t values = 0;
  };
  void open(Kind kind);
  void close(Kind kind);
  void before_value();
  void byte(uint8_t value) { out_ += static_cast<char>(value); }
  void little_endian(uint64_t value, int bytes);

  std::string out_;
  std::vector<Open> open_;
  int64_t top_values_ = 0;
  std::unordered_map<std::string, uint32_t> texts_;  // their places in the reader's memo
  uint32_t memo_size_ = 0;
};

}  // namespace headroom
