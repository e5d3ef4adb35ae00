// Strict readers of what a user types: the whole text must be the value. Messages name the flag,
// what is allowed and what came.
#pragma once

#include <cstdint>
#include <string>

namespace headroom {

// A whole decimal number. Throws InvalidArgument for anything else: signs other than a leading
// minus, blanks, exponents, trailing text, numbers beyond 64 bits.
int64_t parse_integer(const std::string& flag, const std::string& text);
uint64_t parse_unsigned(const std::string& flag, const std::string& text);

// A finite decimal number ("0.05", "1e-3"). Throws InvalidArgument for nan, inf, hexadecimal and
// trailing text.
double parse_real(const std::string& flag, const std::string& text);

// Bytes: "800MB", "1.5GiB", "512 KiB" or a plain number of bytes. KiB, MiB, GiB, TiB are powers of
// 1024, KB, MB, GB, TB of 1000; case does not matter. Fractions of a byte are dropped. Throws
// InvalidArgument for other units, negative sizes and sizes beyond 2^62.
int64_t parse_bytes(const std::string& flag, const std::string& text);

}  // namespace headroom
