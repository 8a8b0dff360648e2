// simd/avx2_bytes.h with dot products of bytes by VPMADDUBSW, whose sums are 16-bit, for CPUs without AVX-VNNI.
#pragma once

#include "simd/avx2_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For 16 registers: a row takes two int32 accumulators; its float32 accumulators spill to memory.
inline constexpr int kInt8TileRows = 6;

template <int Bits>
inline constexpr int32_t kCodeOffset = Bits == 8 ? 128 : 0;
inline constexpr bool kMultipliesCodesInPlace = false;

// A k-group adds 16 products to each int16 sum: at most 16 · 15 · 127 < 2^15 for codes of up to four bits. 8-bit codes,
// made signed, reach 2 · 128 · 127 with the two products of one instruction. VPMADDUBSW takes an unsigned first
// operand, so their signs move to the second.
template <int Bits>
inline constexpr bool kAccumulatesInInt16 = Bits < 8;

template <int Bits>
AETHER_INLINE __m256i dot_bytes(__m256i sum, __m256i w, __m256i x) {
  if constexpr (kAccumulatesInInt16<Bits>) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
  } else {
    const __m256i codes = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    sum = _mm256_add_epi32(sum, add_int16_pairs(products));
  }
  __asm__("" : "+x"(sum));  // keeps one chain: pairwise sums would take more registers
  return sum;
}
template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(const IntVec& sum, const IntVec& w, const IntVec& x) {
  return {dot_bytes<Bits>(sum.low, w.low, x.low), dot_bytes<Bits>(sum.high, w.high, x.high)};
}

}  // namespace aether::cpu::AETHER_ISA
