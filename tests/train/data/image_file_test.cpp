// JPEG and PNG decoding: every kind of pixel, and damaged files.
#include "train/data/image_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/peak_memory.h"
#include "tests/train/data/data_files.h"

namespace headroom {
namespace {

using test::Bytes;
using test::expect_contains;
using test::message_of;
using test::PngFile;
using test::TemporaryFolder;

Bytes decode(const std::string& path, int64_t channels) {
  Bytes pixels;
  const ImageShape shape = decode_image(path, channels, pixels);
  EXPECT_EQ(shape.channels, channels);
  EXPECT_EQ(static_cast<int64_t>(pixels.size()), shape.bytes());
  return pixels;
}

Bytes decode_png(const PngFile& image, int64_t channels) {
  TemporaryFolder folder;
  test::write_png(folder.path("a.png"), image);
  return decode(folder.path("a.png"), channels);
}

std::string failure(const std::string& path) {
  return message_of<DataError>([&] {
    Bytes pixels;
    decode_image(path, 3, pixels);
  });
}

// A picture with something in every block.
Bytes pattern(int height, int width) {
  Bytes pixels;
  for (int i = 0; i < height * width * 3; ++i) pixels.push_back(static_cast<uint8_t>(i * i / 7));
  return pixels;
}

TEST(Png, DecodesColourExactlyInterlacedOrNot) {
  for (const bool interlaced : {false, true}) {
    const PngFile image{.height = 9, .width = 13, .interlaced = interlaced, .rows = pattern(9, 13)};
    EXPECT_EQ(decode_png(image, 3), pattern(9, 13));
  }
}

TEST(Png, LooksColoursUpInAPaletteAndDropsItsAlpha) {
  PngFile image{.height = 1, .width = 4, .colour_type = PNG_COLOR_TYPE_PALETTE};
  image.bit_depth = 2;
  image.rows = {0b00'01'10'01};
  image.palette = {{1, 2, 3}, {40, 50, 60}, {200, 210, 220}};
  const Bytes expected = {1, 2, 3, 40, 50, 60, 200, 210, 220, 40, 50, 60};
  EXPECT_EQ(decode_png(image, 3), expected);
  image.palette_alpha = {0, 128};
  EXPECT_EQ(decode_png(image, 3), expected);
}

TEST(Png, ScalesGrayOfFewBitsToTheWholeRange) {
  PngFile image{.height = 1, .width = 4, .colour_type = PNG_COLOR_TYPE_GRAY};
  image.bit_depth = 2;
  image.rows = {0b00'01'10'11};
  EXPECT_EQ(decode_png(image, 1), (Bytes{0, 85, 170, 255}));
  image.bit_depth = 1;
  image.rows = {0b0110'0000};
  EXPECT_EQ(decode_png(image, 1), (Bytes{0, 255, 255, 0}));
}

TEST(Png, RepeatsGrayAndDropsAlphaAsStored) {
  PngFile gray{.height = 1, .width = 2, .colour_type = PNG_COLOR_TYPE_GRAY_ALPHA};
  gray.rows = {10, 0, 200, 255};
  EXPECT_EQ(decode_png(gray, 1), (Bytes{10, 200}));
  EXPECT_EQ(decode_png(gray, 3), (Bytes{10, 10, 10, 200, 200, 200}));
  PngFile colour{.height = 1, .width = 2, .colour_type = PNG_COLOR_TYPE_RGB_ALPHA};
  colour.rows = {1, 2, 3, 0, 4, 5, 6, 128};
  EXPECT_EQ(decode_png(colour, 3), (Bytes{1, 2, 3, 4, 5, 6}));
}

TEST(Png, ScalesSixteenBitsToEight) {
  PngFile image{.height = 1, .width = 2, .colour_type = PNG_COLOR_TYPE_GRAY};
  image.bit_depth = 16;
  image.rows = {0xFF, 0xFF, 0x80, 0x80};
  EXPECT_EQ(decode_png(image, 1), (Bytes{255, 128}));
}

TEST(Jpeg, DecodesFlatColoursExactly) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.jpg");
  test::write_jpeg(path, 17, 11, 3, Bytes(17 * 11 * 3, 99));
  EXPECT_EQ(decode(path, 3), Bytes(17 * 11 * 3, 99));
}

TEST(Jpeg, StaysCloseToThePictureAndInRgbOrder) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.jpg");
  Bytes pixels;
  for (int i = 0; i < 16 * 16; ++i) pixels.insert(pixels.end(), {220, 60, 20});
  test::write_jpeg(path, 16, 16, 3, pixels);
  const Bytes decoded = decode(path, 3);
  for (size_t i = 0; i < pixels.size(); ++i) ASSERT_NEAR(decoded[i], pixels[i], 3);
}

TEST(Jpeg, ReadsGrayAsOneChannelOrRepeatsIt) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.jpg");
  test::write_jpeg(path, 8, 8, 1, Bytes(64, 77));
  EXPECT_EQ(read_image_header(path), (ImageShape{1, 8, 8}));
  EXPECT_EQ(decode(path, 1), Bytes(64, 77));
  EXPECT_EQ(decode(path, 3), Bytes(192, 77));
}

TEST(Jpeg, ConvertsCmykAsAdobeStoresIt) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.jpg");
  Bytes inks;  // inverted: 255 is no ink
  for (int i = 0; i < 64; ++i) inks.insert(inks.end(), {255, 128, 0, 128});
  test::write_jpeg(path, 8, 8, 4, inks);
  const Bytes expected_pixel = {128, 64, 0};
  const Bytes pixels = decode(path, 3);
  for (size_t i = 0; i < pixels.size(); ++i) ASSERT_NEAR(pixels[i], expected_pixel[i % 3], 3);
}

TEST(ImageFile, TellsTheFormatFromTheBytesNotTheName) {
  TemporaryFolder folder;
  test::write_png(folder.path("a.png"), {.height = 2, .width = 2, .rows = pattern(2, 2)});
  std::filesystem::rename(folder.path("a.png"), folder.path("a.jpg"));
  EXPECT_EQ(decode(folder.path("a.jpg"), 3), pattern(2, 2));
}

TEST(ImageFile, RefusesColourWhereGrayIsNeeded) {
  TemporaryFolder folder;
  for (const std::string name : {"a.jpg", "a.png"}) {
    test::write_flat_image(folder.path(name), 8, 8, 5);
    Bytes pixels;
    EXPECT_THROW(decode_image(folder.path(name), 1, pixels), DataError);
  }
}

TEST(ImageFile, RefusesEveryTruncationNamingTheFile) {
  TemporaryFolder folder;
  const std::string jpeg = folder.path("a.jpg"), png = folder.path("a.png");
  test::write_jpeg(jpeg, 24, 24, 3, pattern(24, 24), 75);
  test::write_png(png, {.height = 24, .width = 24, .rows = pattern(24, 24)});
  for (const std::string& path : {jpeg, png}) {
    const Bytes bytes = test::read_bytes(path);
    ASSERT_EQ(failure(path), "");
    for (size_t length = 0; length < bytes.size(); length += 7) {
      test::write_bytes(path, Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)));
      expect_contains(failure(path), path);
    }
  }
}

TEST(ImageFile, SurvivesDamagedBytes) {
  TemporaryFolder folder;
  const std::string jpeg = folder.path("a.jpg"), png = folder.path("a.png");
  test::write_jpeg(jpeg, 24, 24, 3, pattern(24, 24), 75);
  test::write_png(png, {.height = 24, .width = 24, .rows = pattern(24, 24)});
  for (const std::string& path : {jpeg, png}) {
    const Bytes bytes = test::read_bytes(path);
    int refused = 0, tried = 0;
    for (size_t at = 0; at < bytes.size(); at += 3, ++tried) {
      Bytes damaged = bytes;
      damaged[at] ^= 0xFF;
      test::write_bytes(path, damaged);
      Bytes pixels;
      try {
        const ImageShape shape = decode_image(path, 3, pixels);
        EXPECT_EQ(static_cast<int64_t>(pixels.size()), shape.bytes());
      } catch (const DataError&) {
        ++refused;
      }
    }
    // A changed JPEG coefficient is still a JPEG file; of a PNG file every byte is under a
    // checksum.
    EXPECT_GT(refused, path == png ? tried - 8 : 20);
  }
}

TEST(ImageFile, RefusesHeadersThatClaimTooManyPixelsBeforeAllocating) {
  TemporaryFolder folder;
  const std::string jpeg = folder.path("a.jpg");
  test::write_flat_image(jpeg, 8, 8, 5);
  Bytes bytes = test::read_bytes(jpeg);
  // The start-of-frame marker holds height and width behind its length and precision.
  const Bytes marker = {0xFF, 0xC0};
  const auto frame = std::search(bytes.begin(), bytes.end(), marker.begin(), marker.end());
  ASSERT_NE(frame, bytes.end());
  for (int i = 5; i < 9; ++i) frame[i] = 0xFE;
  test::write_bytes(jpeg, bytes);
  EXPECT_THROW(read_image_header(jpeg), DataError);
  expect_contains(failure(jpeg), "65278 x 65278");
  for (int i = 5; i < 9; ++i) frame[i] = 0xFF;
  test::write_bytes(jpeg, bytes);
  EXPECT_THROW(read_image_header(jpeg), DataError);
  expect_contains(failure(jpeg), "65500");  // the format's own limit
}

// The big-endian bytes of a number.
Bytes number_bytes(uint32_t value) {
  Bytes bytes;
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<uint8_t>(value >> shift));
  return bytes;
}

// A PNG file that ends behind its header and a byte of data.
Bytes png_claiming(uint32_t width, uint32_t height) {
  Bytes bytes = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  const auto put_number = [&](uint32_t value) {
    for (const uint8_t byte : number_bytes(value)) bytes.push_back(byte);
  };
  const auto put_chunk = [&](const std::string& name, const Bytes& data) {
    put_number(static_cast<uint32_t>(data.size()));
    const size_t begin = bytes.size();
    bytes.insert(bytes.end(), name.begin(), name.end());
    bytes.insert(bytes.end(), data.begin(), data.end());
    put_number(static_cast<uint32_t>(
        crc32(0, bytes.data() + begin, static_cast<uInt>(bytes.size() - begin))));
  };
  Bytes header;
  for (const uint32_t side : {width, height}) {
    for (const uint8_t byte : number_bytes(side)) header.push_back(byte);
  }
  header.insert(header.end(), {8, PNG_COLOR_TYPE_RGB, 0, 0, 0});
  put_chunk("IHDR", header);
  put_chunk("IDAT", {0x78});
  return bytes;
}

TEST(ImageFile, RefusesPngHeadersBeyondEverySizeBeforeAllocating) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.png");
  for (const uint32_t side : {uint32_t{65535}, (uint32_t{1} << 31) - 1}) {
    test::write_bytes(path, png_claiming(side, side));
    EXPECT_THROW(read_image_header(path), DataError) << side;
    EXPECT_NE(failure(path), "") << side;
    EXPECT_LT(test::peak_bytes_of([&] { failure(path); }), int64_t{32} << 20) << side;
  }
}

TEST(ImageFile, TakesNoMemoryForPngTextThatIsNotThere) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.png");
  test::write_png(path, {.height = 2, .width = 2, .rows = pattern(2, 2)});
  constexpr size_t kBehindHeader = 8 + 25;
  Bytes bytes = test::read_bytes(path);
  Bytes chunk = number_bytes(300'000'000);
  for (const char c : {'i', 'T', 'X', 't'}) chunk.push_back(static_cast<uint8_t>(c));
  bytes.insert(bytes.begin() + kBehindHeader, chunk.begin(), chunk.end());
  test::write_bytes(path, bytes);
  EXPECT_NE(failure(path), "");
  EXPECT_LT(test::peak_bytes_of([&] { failure(path); }), int64_t{32} << 20);
}

// Sizes that a photo may have, from files that cannot hold them.
TEST(ImageFile, TakesNoMemoryForPixelsThatTheFileIsTooShortToHold) {
  TemporaryFolder folder;
  const std::string png = folder.path("a.png"), jpeg = folder.path("a.jpg");
  test::write_bytes(png, png_claiming(11000, 11000));
  // Baseline and progressive: of the latter, libjpeg keeps all coefficients.
  for (const std::vector<jpeg_scan_info>& scans :
       {std::vector<jpeg_scan_info>{}, {{1, {0}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}}}) {
    test::write_jpeg(jpeg, 8, 8, 1, Bytes(64, 9), 90, scans);
    Bytes bytes = test::read_bytes(jpeg);
    const Bytes marker = {0xFF, static_cast<uint8_t>(scans.empty() ? 0xC0 : 0xC2)};
    const auto frame = std::search(bytes.begin(), bytes.end(), marker.begin(), marker.end());
    ASSERT_NE(frame, bytes.end());
    frame[5] = frame[7] = 0x27;  // 0x2710: 10000
    frame[6] = frame[8] = 0x10;
    test::write_bytes(jpeg, bytes);
    for (const std::string& path : {png, jpeg}) {
      expect_contains(failure(path), "which take at least");
      EXPECT_THROW(read_image_header(path), DataError);
      EXPECT_LT(test::peak_bytes_of([&] { failure(path); }), int64_t{32} << 20) << path;
    }
  }
}

TEST(ImageFile, ReadsFlatPicturesThatArePackedAsTightlyAsTheFormatsCan) {
  TemporaryFolder folder;
  const std::string png = folder.path("a.png"), jpeg = folder.path("a.jpg");
  constexpr int kSide = 4096;
  constexpr size_t kPixels = size_t{kSide} * kSide;
  test::write_png(png, {.height = kSide,
                        .width = kSide,
                        .colour_type = PNG_COLOR_TYPE_GRAY,
                        .rows = Bytes(kPixels, 0)});
  EXPECT_GT(kPixels, 900 * test::read_bytes(png).size());
  EXPECT_EQ(decode(png, 1), Bytes(kPixels, 0));
  test::write_jpeg(jpeg, kSide, kSide, 1, Bytes(kPixels, 128), 90,
                   {{1, {0}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}});
  EXPECT_GT(kPixels, 400 * test::read_bytes(jpeg).size());
  EXPECT_EQ(decode(jpeg, 1), Bytes(kPixels, 128));
}

TEST(Jpeg, RefusesEndlessScansOverTheSamePicture) {
  TemporaryFolder folder;
  const std::string path = folder.path("a.jpg");
  test::write_jpeg(path, 8, 8, 1, Bytes(64, 77), 90, {{1, {0}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}});
  const Bytes bytes = test::read_bytes(path);
  const Bytes marker = {0xFF, 0xDA};
  const auto scan = std::find_end(bytes.begin(), bytes.end(), marker.begin(), marker.end());
  ASSERT_NE(scan, bytes.end());
  const Bytes last_scan(scan, bytes.end() - 2);  // two bytes end the image
  const auto with_copies = [&](int copies) {
    Bytes out(bytes.begin(), bytes.end() - 2);
    for (int i = 0; i < copies; ++i) out.insert(out.end(), last_scan.begin(), last_scan.end());
    out.insert(out.end(), {0xFF, 0xD9});
    return out;
  };
  test::write_bytes(path, with_copies(50));
  EXPECT_EQ(decode(path, 1), Bytes(64, 77));
  test::write_bytes(path, with_copies(200));
  expect_contains(failure(path), "more than 100 scans");
}

TEST(ImageFile, RefusesOtherFormatsEmptyAndMissingFiles) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("text.jpg"), {'h', 'e', 'l', 'l', 'o'});
  expect_contains(failure(folder.path("text.jpg")), "neither a JPEG nor a PNG");
  test::write_bytes(folder.path("empty.png"), {});
  expect_contains(failure(folder.path("empty.png")), "empty");
  expect_contains(failure(folder.path("missing.png")), "No such file");
  expect_contains(failure(folder.root()), "cannot be read");
}

}  // namespace
}  // namespace headroom
