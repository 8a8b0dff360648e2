// simd/avx512.h plus the two-way bfloat16 dot product, which the matrix kernels then use for bfloat16.
#pragma once

#include "simd/avx512.h"

#define AETHER_HAS_PAIR_DOT 1

namespace aether::cpu::AETHER_ISA {

// sum + x[even] w[even] + x[odd] w[odd] in every lane, for a pair x that all lanes share and the sixteen pairs of a
// packed step.
AETHER_INLINE __m512bh broadcast_pair(const void* pair) {
  int32_t word;
  std::memcpy(&word, pair, sizeof word);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}
AETHER_INLINE __m512bh load_step(const void* step) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(step)); }
// Rounds finite values to nearest even; denormal ones become zero.
AETHER_INLINE void store_finite(BFloat16* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}
AETHER_INLINE Vec dot_pairs(__m512bh x, __m512bh w, Vec sum) { return _mm512_dpbf16_ps(sum, x, w); }

}  // namespace aether::cpu::AETHER_ISA
