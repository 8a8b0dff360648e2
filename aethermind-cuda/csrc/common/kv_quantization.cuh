// Quantised KV cache: 8-bit elements (int8 or float8_e4m3fn) with a float32 scale per row, that is, per head of a slot.
#pragma once

#include "common/types.cuh"

namespace aether {

enum class CodeType : int { kInt8 = 0, kFloat8 = 1 };

// The largest code: a row's largest magnitude maps to it.
__device__ __forceinline__ float largest_code(CodeType type) { return type == CodeType::kInt8 ? 127.0f : 448.0f; }

// Rows whose largest magnitude is below this are stored as zeros.
constexpr float kSmallestMagnitude = 0x1p-100f;

// float8_e4m3fn has exponent bias 7, float32 has 127: the bits moved up are the value times 2^-120, subnormals
// included. A NaN, which is never written, would read as 480.
__device__ __forceinline__ float float8_value(uint32_t code) {
  return __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
}

// A byte in the low mantissa bits of 2^23 reads as 2^23 + byte: cheaper than an integer conversion, which has a quarter
// of the throughput.
__device__ __forceinline__ float int8_value(uint32_t code) {
  return __uint_as_float(0x4b000000u | ((code & 0xffu) ^ 0x80u)) - (8388608.0f + 128.0f);
}

__device__ __forceinline__ float code_value(uint32_t code, CodeType type) {
  return type == CodeType::kInt8 ? int8_value(code) : float8_value(code);
}

// Rounds a magnitude up to 448 (plus rounding error) to the nearest code, ties to even.
__device__ __forceinline__ uint32_t float8_code(float x) {
  const uint32_t sign = __float_as_uint(x) >> 24 & 0x80u;
  const float magnitude = fabsf(x);
  if (magnitude < 0x1p-6f) return sign | static_cast<uint32_t>(rintf(magnitude * 0x1p9f));
  uint32_t bits = __float_as_uint(magnitude);
  bits += 0x7ffffu + (bits >> 20 & 1u);
  return sign | ((bits >> 20) - (120u << 3));
}

// The codes of two numbers, the first in the low byte.
__device__ __forceinline__ uint32_t float8_codes(float first, float second) {
#if !defined(AETHER_EMULATED) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return float8_code(first) | float8_code(second) << 8;
#endif
}

__device__ __forceinline__ uint8_t nearest_code(float x, CodeType type) {
  return type == CodeType::kInt8 ? static_cast<uint8_t>(static_cast<int8_t>(rintf(x)))
                                 : static_cast<uint8_t>(float8_code(x));
}

// The quantisation of a row: codes are x · inverse, values are code · scale. A row that is not finite has codes 0 and
// scale NaN.
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
