// simd/avx512.h plus the four-way dot product of bytes, which the kernels of quantised weights then use.
#pragma once

#include "simd/avx512.h"

#define AETHER_HAS_BYTE_DOT 1

namespace aether::cpu::AETHER_ISA {

// Register blocking: rows of one panel, each with an accumulator of integers and one of floats.
inline constexpr int kByteTileRows = 12;

using IntVec = __m512i;  // sixteen 32-bit integers, or four bytes in each

AETHER_INLINE IntVec load_words(const void* p) { return _mm512_loadu_si512(p); }
AETHER_INLINE IntVec broadcast_word(const char* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// sum + Σ w x over the four bytes of a word: w unsigned, x signed.
AETHER_INLINE IntVec dot_bytes(IntVec sum, IntVec w, IntVec x) { return _mm512_dpbusd_epi32(sum, w, x); }

// Sixteen unsigned bytes, one a word; and their products with a word, both below 2^15.
AETHER_INLINE IntVec widen_to_words(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
AETHER_INLINE IntVec multiply_small(IntVec w, IntVec x) { return _mm512_dpwssd_epi32(_mm512_setzero_si512(), w, x); }
AETHER_INLINE Vec to_floats(IntVec v) { return _mm512_cvtepi32_ps(v); }

// Field `Field` of `Bits` bits of every byte. A single bit is left as 0 or 2.
template <int Bits, int Field>
AETHER_INLINE IntVec fields_of(IntVec step) {
  if constexpr (Bits == 8) return step;
  const IntVec mask = _mm512_set1_epi8(Bits == 4 ? 15 : Bits == 2 ? 3 : 2);
  if constexpr (Bits == 1 && Field == 0) return _mm512_and_si512(_mm512_add_epi8(step, step), mask);
  constexpr unsigned kShift = Bits == 1 ? Field - 1 : Bits * Field;
  return _mm512_and_si512(kShift ? _mm512_srli_epi16(step, kShift) : step, mask);
}

struct ByteBlock {
  float scale;
  int32_t sum;
};

// Thirty-two values as signed bytes: x ≈ scale · code with scale = largest |x| / 127. Where a value is not finite, the
// scale is not either.
AETHER_INLINE ByteBlock quantize_values(Vec low, Vec high, char* codes) {
  const Vec largest = max(_mm512_abs_ps(low), _mm512_abs_ps(high));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(largest), _mm512_extractf32x8_ps(largest, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  const float magnitude = _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  const bool is_zero = magnitude < 0x1p-100f;  // too small for a reciprocal
  const Vec inverse = set1(is_zero ? 0.0f : 127.0f / magnitude);
  const __m128i a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(low * inverse));
  const __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(high * inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16), b);
  const __m128i ones = _mm_set1_epi8(1);
  const __m128i sums = _mm_dpbusd_epi32(_mm_dpbusd_epi32(_mm_setzero_si128(), ones, a), ones, b);
  const __m128i two = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
  const int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  const bool is_nan = _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q) != 0;
  return {is_nan ? __builtin_nanf("") : is_zero ? 0.0f : magnitude * (1.0f / 127.0f), sum};
}

}  // namespace aether::cpu::AETHER_ISA
