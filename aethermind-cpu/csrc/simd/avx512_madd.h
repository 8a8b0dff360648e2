// simd/avx512_bytes.h with dot products of bytes by VPMADDUBSW, whose sums are 16-bit, for CPUs without AVX512-VNNI.
#pragma once

#include "simd/avx512_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For 32 registers: a row takes one int32 and one float32 accumulator.
inline constexpr int kInt8TileRows = 12;

template <int Bits>
inline constexpr int32_t kCodeOffset = Bits == 8 ? 128 : 0;
inline constexpr bool kMultipliesCodesInPlace = false;
template <int Bits>
inline constexpr bool kAccumulatesInInt16 = false;

// VPMADDUBSW saturates sums of two products at 2^15 − 1, which codes of up to four bits and signed 8-bit codes
// (2 · 128 · 127) do not exceed. Its first operand is unsigned, so the signs of 8-bit codes move to the second.
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
