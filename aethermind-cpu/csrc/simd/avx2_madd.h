// simd/avx2_bytes.h with the dot product of bytes by way of 16-bit sums, for CPUs without AVX-VNNI.
#pragma once

#include "simd/avx2_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For sixteen registers: each row has two accumulators of integers; its floats wait in memory.
inline constexpr int kByteTileRows = 6;

template <int Bits>
inline constexpr int32_t kCodeOffset = Bits == 8 ? 128 : 0;
inline constexpr bool kMultipliesFieldsInPlace = false;

// What a unit adds to each half of a word is the sum of sixteen products, of codes of at most four bits below 2^15:
// 16 · 15 · 127. Of eight bits it is that of two at most, once they are signed: 2 · 128 · 127. The first operand is
// unsigned, so their signs move to the second.
template <int Bits>
inline constexpr bool kSumsUnitsInHalves = Bits < 8;

template <int Bits>
AETHER_INLINE __m256i dot_bytes(__m256i sum, __m256i w, __m256i x) {
  if constexpr (kSumsUnitsInHalves<Bits>) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
  } else {
    const __m256i codes = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    sum = _mm256_add_epi32(sum, add_halves(products));
  }
  __asm__("" : "+x"(sum));  // one chain: compilers would rather add in pairs, for which there are no registers
  return sum;
}
template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(const IntVec& sum, const IntVec& w, const IntVec& x) {
  return {dot_bytes<Bits>(sum.low, w.low, x.low), dot_bytes<Bits>(sum.high, w.high, x.high)};
}

}  // namespace aether::cpu::AETHER_ISA
