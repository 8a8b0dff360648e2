// Rows of a quantised KV cache: 8-bit codes and one scale per head of a token. The tensor's dtype is AM_INT8 or
// AM_FLOAT8_E4M3FN (OCP 8-bit floating point, 2023: bias 7, largest 448, no infinity). x ≈ scale · code, with
// scale = max |x| / largest code.
#pragma once

#include <cstring>

#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

struct Code {
  uint8_t bits;
};

// Rounds a finite value below 448 to nearest even. Subnormals are multiples of 2^-9, the unit in the last place of
// floats from 2^14 on: adding 2^14 rounds them.
AETHER_INLINE uint8_t to_e4m3(float value) {
  const uint32_t word = __builtin_bit_cast(uint32_t, value), magnitude = word & 0x7fffffffu;
  const uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const float small = __builtin_bit_cast(float, magnitude) + 0x1p14f;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, small) - (141u << 23);
  return static_cast<uint8_t>((magnitude < (121u << 23) ? subnormal : normal) | (word >> 24 & 0x80u));
}

// Quantises a row and returns its scale; NaN where a value is not finite.
template <class V>
AETHER_INLINE float quantize_row(int32_t dtype, const V* values, int64_t count, Code* codes) {
  Vec largest = zero(), check = zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec value = load(values + i, smaller(count - i, kLanes));
    largest = max(largest, max(value, zero() - value));
    check = fma(value, zero(), check);
  }
  const float magnitude = reduce_max(largest);
  const bool is_finite = reduce_add(check) == 0.0f, is_zero = magnitude < 0x1p-100f;  // no finite reciprocal
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

// Codes as floats; exact in every compute type.
struct IntegerCodes {
  AETHER_INLINE static Vec load(const void* codes) { return load_integer_codes(codes); }
};
struct E4m3Codes {
  AETHER_INLINE static Vec load(const void* codes) { return load_e4m3_codes(codes) * set1(256.0f); }
};
AETHER_INLINE void store_exact(float* row, const Vec& numbers) { store(row, numbers); }

// Dequantises a row without its scale. Writes whole vectors: `row` is padded to them.
template <class Codes, class T>
AETHER_INLINE void dequantize_row(const Code* codes, int64_t count, T* row) {
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store_exact(row + i, Codes::load(codes + i));
  if (whole == count) return;
  Code last[kLanes] = {};
  std::memcpy(last, codes + whole, static_cast<size_t>(count - whole));
  store_exact(row + whole, Codes::load(last));
}
template <class T>
AETHER_INLINE void dequantize_row(int32_t dtype, const Code* codes, int64_t count, T* row) {
  if (dtype == AM_INT8) {
    dequantize_row<IntegerCodes>(codes, count, row);
  } else {
    dequantize_row<E4m3Codes>(codes, count, row);
  }
}

}  // namespace aether::cpu::AETHER_ISA
