// Dequantises two 8-bit KV cache elements (int8 or float8_e4m3fn) at a time to float16 or bfloat16, by bit operations
// and one packed operation (half2). Converting them one by one would dominate attention over a quantised cache.
#pragma once

#include <type_traits>

#include "common/kv_quantization.cuh"

namespace aether {

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, float16>, __half2, __nv_bfloat162>;

template <class T>
__device__ __forceinline__ const PairOf<T>& as_pair(const uint32_t& bits) {
  return reinterpret_cast<const PairOf<T>&>(bits);
}

template <class T>
__device__ __forceinline__ uint32_t bits_of_pair(const PairOf<T>& pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// Converts two codes to a pair of T, unscaled. Each code is replicated in both bytes of its half of `codes`. Exact: T
// represents every code. The float8 NaN, which is never written, reads as 480.
template <class T, CodeType kType>
__device__ __forceinline__ uint32_t dequantized_pair(uint32_t codes) {
  constexpr bool kIsHalf = std::is_same_v<T, float16>;
  if constexpr (kType == CodeType::kInt8 && kIsHalf) {
    // An 8-bit code in the low mantissa bits of 1024.0 reads as 1024 + code.
    const uint32_t above = (codes & 0x00ff00ffu) ^ 0x64806480u;
    return bits_of_pair<T>(__hsub2(as_pair<T>(above), as_pair<T>(0x64806480u)));
  } else if constexpr (kType == CodeType::kInt8) {
    // Only seven mantissa bits are below 128.0, so the sign bit of a code turns the subtrahend from 128 into 256.
    const uint32_t above = (codes & 0x007f007fu) | 0x43004300u, base = (codes & 0x00800080u) | 0x43004300u;
    return bits_of_pair<T>(__hsub2(as_pair<T>(above), as_pair<T>(base)));
  } else {
    // A float8_e4m3fn moved to the exponent and mantissa of T is its value times 2^-8 or 2^-120, subnormals included.
    constexpr int kDown = kIsHalf ? 1 : 4;
    constexpr uint32_t kMagnitude = 0x7f007f00u >> kDown, kFactor = kIsHalf ? 0x5c005c00u : 0x7b807b80u;
    const uint32_t placed = (codes & 0x80008000u) | ((codes >> kDown) & kMagnitude);
    return bits_of_pair<T>(__hmul2(as_pair<T>(placed), as_pair<T>(kFactor)));
  }
}

// Replicates bytes 2 kPair and 2 kPair + 1 of a word for `dequantized_pair`.
template <int kPair>
__device__ __forceinline__ uint32_t neighbours(uint32_t word) {
  return __byte_perm(word, 0, kPair == 0 ? 0x1100 : 0x3322);
}

// Replicates byte `index` of two words for `dequantized_pair`.
__device__ __forceinline__ uint32_t byte_of_both(uint32_t first, uint32_t second, int index) {
  return __byte_perm(first, second, 0x4400 + 0x1111 * index);
}

}  // namespace aether
