// The opcodes.
#include "train/pickle.h"

#include <limits>

#include "core/base/error.h"

namespace headroom {
namespace {

constexpr uint8_t kProtocol = 0x80, kVersion = 2, kStop = '.', kMark = '(';
constexpr uint8_t kNone = 'N', kTrue = 0x88, kFalse = 0x89;
constexpr uint8_t kInt1 = 'K', kInt2 = 'M', kInt4 = 'J', kLong1 = 0x8a, kText = 'X';
constexpr uint8_t kEmptyList = ']', kAppends = 'e', kEmptyDict = '}', kSetItems = 'u';
constexpr uint8_t kPair = 0x86;
constexpr uint8_t kPut1 = 'q', kPut4 = 'r', kGet1 = 'h', kGet4 = 'j';

constexpr int64_t kBatch = 1000;  // elements of a list in one piece, as Python has it

// Bytes of the UTF-8 sequence that begins at `at`, 0 if it is none.
size_t sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  for (size_t i = at + 1; i < at + length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Too long a form, half of a UTF-16 pair, beyond the last character.
  const uint8_t second = byte(at + 1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text, at);
    out += length > 0 ? text.substr(at, length) : "\xEF\xBF\xBD";
    at += length > 0 ? length : 1;
  }
  return out;
}

}  // namespace

PickleWriter::PickleWriter() {
  byte(kProtocol);
  byte(kVersion);
}

void PickleWriter::little_endian(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
}

void PickleWriter::before_value() {
  if (open_.empty()) {
    CHECK(top_values_ == 0, "pickle: a second value");
    ++top_values_;
    return;
  }
  Open& inside = open_.back();
  if (inside.kind == Kind::list && inside.values % kBatch == 0) {
    if (inside.values > 0) byte(kAppends);
    byte(kMark);
  }
  ++inside.values;
}

void PickleWriter::none() {
  before_value();
  byte(kNone);
}

void PickleWriter::boolean(bool value) {
  before_value();
  byte(value ? kTrue : kFalse);
}

void PickleWriter::integer(int64_t value) {
  before_value();
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value <= 0xFF) {
    byte(kInt1);
    little_endian(bits, 1);
  } else if (value >= 0 && value <= 0xFFFF) {
    byte(kInt2);
    little_endian(bits, 2);
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    byte(kInt4);
    little_endian(bits, 4);
  } else {
    byte(kLong1);
    byte(8);
    little_endian(bits, 8);
  }
}

void PickleWriter::unsigned_integer(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    integer(static_cast<int64_t>(value));
    return;
  }
  before_value();
  byte(kLong1);
  byte(9);  // the ninth holds the sign
  little_endian(value, 8);
  byte(0);
}

void PickleWriter::text(std::string_view value) {
  const auto [known, is_new] = texts_.try_emplace(std::string(value));
  if (!is_new) {
    recall(known->second);
    return;
  }
  before_value();
  const std::string utf8 = valid_utf8(value);
  CHECK(utf8.size() <= std::numeric_limits<uint32_t>::max(), "pickle: a text of ", utf8.size(),
        " bytes");
  byte(kText);
  little_endian(utf8.size(), 4);
  out_ += utf8;
  known->second = remember();
}

uint32_t PickleWriter::remember() {
  const uint32_t number = memo_size_++;
  byte(number <= 0xFF ? kPut1 : kPut4);
  little_endian(number, number <= 0xFF ? 1 : 4);
  return number;
}

void PickleWriter::recall(uint32_t number) {
  CHECK(number < memo_size_, "pickle: nothing is remembered as ", number);
  before_value();
  byte(number <= 0xFF ? kGet1 : kGet4);
  little_endian(number, number <= 0xFF ? 1 : 4);
}

void PickleWriter::open(Kind kind) {
  before_value();
  open_.push_back({kind});
}

void PickleWriter::close(Kind kind) {
  CHECK(!open_.empty() && open_.back().kind == kind, "pickle: ends what was not begun");
}

void PickleWriter::begin_list() {
  open(Kind::list);
  byte(kEmptyList);
}

void PickleWriter::end_list() {
  close(Kind::list);
  if (open_.back().values > 0) byte(kAppends);
  open_.pop_back();
}

void PickleWriter::begin_dict() {
  open(Kind::dict);
  byte(kEmptyDict);
  byte(kMark);
}

void PickleWriter::end_dict() {
  close(Kind::dict);
  CHECK(open_.back().values % 2 == 0, "pickle: a key without its value");
  byte(kSetItems);
  open_.pop_back();
}

void PickleWriter::begin_pair() { open(Kind::pair); }

void PickleWriter::end_pair() {
  close(Kind::pair);
  CHECK(open_.back().values == 2, "pickle: a pair of ", open_.back().values, " values");
  byte(kPair);
  open_.pop_back();
}

std::string PickleWriter::finish() {
  CHECK(open_.empty() && top_values_ == 1, "pickle: not one whole value");
  byte(kStop);
  return std::move(out_);
}

}  // namespace headroom
