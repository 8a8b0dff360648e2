// simd/avx512_bytes.h with the dot product of bytes by way of 16-bit sums, for CPUs without AVX512-VNNI.
#pragma once

#include "simd/avx512_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For 32 registers: each row has an accumulator of integers and one of floats.
inline constexpr int kByteTileRows = 12;

template <int Bits>
inline constexpr int32_t kCodeOffset = Bits == 8 ? 128 : 0;
inline constexpr bool kMultipliesFieldsInPlace = false;
template <int Bits>
inline constexpr bool kSumsUnitsInHalves = false;

// The sum of two products saturates beyond 2^15 − 1. Codes of four bits stay far below; those of eight do once they are
// signed: 2 · 128 · 127. The first operand is unsigned, so their signs move to the second.
template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(IntVec sum, IntVec w, IntVec x) {
  if constexpr (Bits == 8) {
    const IntVec codes = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
    w = _mm512_abs_epi8(codes);
  }
  return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
}

}  // namespace aether::cpu::AETHER_ISA
