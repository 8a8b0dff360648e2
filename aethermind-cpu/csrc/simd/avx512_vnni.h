// simd/avx512_bytes.h with the four-way dot product of bytes (AVX512-VNNI).
#pragma once

#include "simd/avx512_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For 32 registers: a row takes one int32 and one float32 accumulator.
inline constexpr int kInt8TileRows = 12;

template <int Bits>
inline constexpr int32_t kCodeOffset = 0;
inline constexpr bool kMultipliesCodesInPlace = true;
template <int Bits>
inline constexpr bool kAccumulatesInInt16 = false;

template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(IntVec sum, IntVec w, IntVec x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}

}  // namespace aether::cpu::AETHER_ISA
