// Rows of floats as codes of one byte with one scale: what a quantised KV cache holds of a head of a token. A tensor's
// dtype says which codes: AM_INT8, or AM_FLOAT8_E4M3FN (OCP 8-bit floating point, 2023: bias 7, largest 448, no
// infinity). x ≈ scale · code, and scale = largest |x| of the row / largest code.
#pragma once

#include <cstring>

#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

struct Code {
  uint8_t bits;
};

// To nearest even, of a finite value that rounds to 448 at most. Steps between subnormals are 2^-9, which is that of
// floats from 2^14 on: adding it rounds them.
AETHER_INLINE uint8_t to_e4m3(float value) {
  const uint32_t word = __builtin_bit_cast(uint32_t, value), magnitude = word & 0x7fffffffu;
  const uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const float small = __builtin_bit_cast(float, magnitude) + 0x1p14f;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, small) - (141u << 23);
  return static_cast<uint8_t>((magnitude < (121u << 23) ? subnormal : normal) | (word >> 24 & 0x80u));
}

// One row as codes; returns their scale. That of a row with a value that is not finite is NaN.
template <class V>
AETHER_INLINE float encode_row(int32_t dtype, const V* values, int64_t count, Code* codes) {
  Vec largest = zero(), check = zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec value = load(values + i, smaller(count - i, kLanes));
    largest = max(largest, max(value, zero() - value));
    check = fma(value, zero(), check);
  }
  const float magnitude = reduce_max(largest);
  const bool is_finite = reduce_add(check) == 0.0f, is_zero = magnitude < 0x1p-100f;  // too small for a reciprocal
  if (!is_finite || is_zero) {
    std::memset(codes, 0, static_cast<size_t>(count));
    return is_finite ? 0.0f : __builtin_nanf("");
  }
  const float largest_code = dtype == AM_INT8 ? 127.0f : 448.0f;
  const Vec inverse = set1(largest_code / magnitude);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = smaller(count - i, kLanes);
    const Vec scaled = load(values + i, n) * inverse;
    float lanes[kLanes];
    uint8_t block[kLanes];
    if (dtype == AM_INT8) {
      store(lanes, round_to_integer(scaled));
      for (int j = 0; j < kLanes; ++j) block[j] = static_cast<uint8_t>(static_cast<int32_t>(lanes[j]));
    } else {
      store(lanes, scaled);
      for (int j = 0; j < kLanes; ++j) block[j] = to_e4m3(lanes[j]);
    }
    std::memcpy(codes + i, block, static_cast<size_t>(n));
  }
  return magnitude / largest_code;
}

// Codes as numbers, of which every type that is computed with holds each exactly.
struct IntegerCodes {
  AETHER_INLINE static Vec load(const void* codes) { return load_integer_codes(codes); }
};
struct E4m3Codes {
  AETHER_INLINE static Vec load(const void* codes) { return load_e4m3_codes(codes) * set1(256.0f); }
};
AETHER_INLINE void store_exact(float* row, const Vec& numbers) { store(row, numbers); }

// A row of them. Whole vectors are written: `row` has room for them.
template <class Codes, class T>
AETHER_INLINE void decode_row(const Code* codes, int64_t count, T* row) {
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store_exact(row + i, Codes::load(codes + i));
  if (whole == count) return;
  Code last[kLanes] = {};
  std::memcpy(last, codes + whole, static_cast<size_t>(count - whole));
  store_exact(row + whole, Codes::load(last));
}
template <class T>
AETHER_INLINE void decode_row(int32_t dtype, const Code* codes, int64_t count, T* row) {
  if (dtype == AM_INT8) {
    decode_row<IntegerCodes>(codes, count, row);
  } else {
    decode_row<E4m3Codes>(codes, count, row);
  }
}

}  // namespace aether::cpu::AETHER_ISA
