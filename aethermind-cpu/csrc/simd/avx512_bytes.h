// simd/avx512.h plus bytes, four to a word (simd/byte_dot.h).
#pragma once

#include "simd/avx512.h"
#include "simd/byte_dot.h"

namespace aether::cpu::AETHER_ISA {

using IntVec = __m512i;  // sixteen 32-bit integers, or four bytes in each

AETHER_INLINE IntVec load_words(const void* p) { return _mm512_loadu_si512(p); }
AETHER_INLINE IntVec broadcast_word(const char* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// Sixteen unsigned bytes less `offset`, each in the low half of a word; and their products with a word of a magnitude
// below 2^15.
AETHER_INLINE IntVec widen_to_words(const uint8_t* p, int32_t offset = 0) {
  const IntVec words = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_sub_epi16(words, _mm512_set1_epi32(offset));
}
AETHER_INLINE IntVec multiply_small(IntVec w, IntVec x) { return _mm512_madd_epi16(w, x); }
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

// Thirty-two values as signed bytes.
AETHER_INLINE ByteBlock quantize_values(Vec low, Vec high, char* codes) {
  const Vec largest = max(_mm512_abs_ps(low), _mm512_abs_ps(high));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(largest), _mm512_extractf32x8_ps(largest, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  const float magnitude = _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  const Vec steps = set1(steps_per_one(magnitude));
  const __m128i a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(low * steps));
  const __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(high * steps));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16), b);
  const __m128i ones = _mm_set1_epi8(1);
  const __m128i pairs = _mm_add_epi16(_mm_maddubs_epi16(ones, a), _mm_maddubs_epi16(ones, b));
  const __m128i four = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  return byte_block(magnitude, _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q) != 0, sum);
}

}  // namespace aether::cpu::AETHER_ISA
