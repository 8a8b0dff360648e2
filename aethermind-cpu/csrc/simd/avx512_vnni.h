// simd/avx512_bytes.h with the four-way dot product of bytes.
#pragma once

#include "simd/avx512_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For 32 registers: each row has an accumulator of integers and one of floats.
inline constexpr int kByteTileRows = 12;

template <int Bits>
inline constexpr int32_t kCodeOffset = 0;
inline constexpr bool kMultipliesFieldsInPlace = true;
template <int Bits>
inline constexpr bool kSumsUnitsInHalves = false;

template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(IntVec sum, IntVec w, IntVec x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}

}  // namespace aether::cpu::AETHER_ISA
