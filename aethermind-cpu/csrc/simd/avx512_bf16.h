// simd/avx512.h plus the bfloat16 dot product of pairs (VDPBF16PS), with which the matrix kernels multiply bfloat16.
#pragma once

#include "simd/avx512.h"

#define AETHER_HAS_PAIR_DOT 1

namespace aether::cpu::AETHER_ISA {

// sum + x[0] w[0] + x[1] w[1] in every lane, for one pair x and the sixteen pairs w of a packed step.
AETHER_INLINE __m512bh broadcast_pair(const void* pair) {
  int32_t word;
  std::memcpy(&word, pair, sizeof word);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}
AETHER_INLINE __m512bh load_step(const void* step) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(step)); }
AETHER_INLINE Vec dot_pairs(__m512bh x, __m512bh w, Vec sum) { return _mm512_dpbf16_ps(sum, x, w); }

// Accurate to 13 bits, of which bfloat16 keeps 8: 2^t = 2^fraction · 2^floor(t), the first factor by a minimax
// polynomial (relative error 3e-6), and a 14-bit reciprocal.
template <>
AETHER_INLINE Vec silu_for<BFloat16>(const Vec& x) {
  const Vec t = x * set1(-1.44269504f);
  const Vec fraction = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vec p = set1(0x1.bb7cd4p-7f);
  p = fma(p, fraction, set1(0x1.aa13f0p-5f));
  p = fma(p, fraction, set1(0x1.ee798ap-3f));
  p = fma(p, fraction, set1(0x1.62d166p-1f));
  p = fma(p, fraction, set1(0x1.00002cp+0f));
  return x * _mm512_rcp14_ps(set1(1.0f) + scale_by_power_of_two(p, t));
}

}  // namespace aether::cpu::AETHER_ISA
