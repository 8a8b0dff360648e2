// What a quantised KV cache holds: codes of one byte, int8 or float8_e4m3fn, with a float32 scale for each row.
#pragma once

#include "common/types.cuh"

namespace aether {

enum class CodeType : int { kInt8 = 0, kFloat8 = 1 };

// The largest code, which a row's largest magnitude becomes.
__device__ __forceinline__ float largest_code(CodeType type) { return type == CodeType::kInt8 ? 127.0f : 448.0f; }

// Rows below this are zero.
constexpr float kSmallestMagnitude = 0x1p-100f;

// float8_e4m3fn has bias 7 and float32 127: its bits moved up are a float32 of 2^-120 times the value, subnormals too.
// A NaN, which no row is written with, would read as 480.
__device__ __forceinline__ float float8_value(uint32_t code) {
  return __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
}

// A byte in the last bits of 2^23 is an integer above it: cheaper than a conversion, which runs at a quarter of the
// rate.
__device__ __forceinline__ float int8_value(uint32_t code) {
  return __uint_as_float(0x4b000000u | ((code & 0xffu) ^ 0x80u)) - (8388608.0f + 128.0f);
}

__device__ __forceinline__ float code_value(uint32_t code, CodeType type) {
  return type == CodeType::kInt8 ? int8_value(code) : float8_value(code);
}

// The nearest code, ties to even, of a magnitude up to 448 (and what rounding adds to it).
__device__ __forceinline__ uint32_t float8_code(float x) {
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80u;
  const float magnitude = fabsf(x);
  if (magnitude < 0x1p-6f) return sign | static_cast<uint32_t>(rintf(magnitude * 0x1p9f));
  uint32_t bits = __float_as_uint(magnitude);
  bits += 0x7ffffu + (bits >> 20 & 1u);
  return sign | ((bits >> 20) - (120u << 3));
}

__device__ __forceinline__ uint8_t nearest_code(float x, CodeType type) {
  return type == CodeType::kInt8 ? static_cast<uint8_t>(static_cast<int8_t>(rintf(x)))
                                 : static_cast<uint8_t>(float8_code(x));
}

// How a row becomes codes: x times `inverse`, and `scale` beside them. A row that is not finite is codes 0 of scale
// NaN.
struct CodeScale {
  float inverse;
  float scale;
};

__device__ __forceinline__ CodeScale code_scale(float largest, CodeType type) {
  if (!(largest <= 3.402823466e38f)) return {0.0f, __uint_as_float(0x7fc00000u)};
  if (largest < kSmallestMagnitude) return {0.0f, 0.0f};
  return {__fdiv_rn(largest_code(type), largest), __fdiv_rn(largest, largest_code(type))};
}

}  // namespace aether
