// simd/avx2.h plus bytes, four to a word (simd/byte_dot.h).
#pragma once

#include "simd/avx2.h"
#include "simd/byte_dot.h"

namespace aether::cpu::AETHER_ISA {

// Sixteen 32-bit integers, or four bytes in each.
struct IntVec {
  __m256i low, high;
};

AETHER_INLINE IntVec set_words(int32_t word) { return {_mm256_set1_epi32(word), _mm256_set1_epi32(word)}; }
AETHER_INLINE IntVec load_words(const void* p) {
  const auto* words = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
AETHER_INLINE IntVec broadcast_word(const char* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return set_words(word);
}

// Sixteen unsigned bytes less `offset`, each in the low half of a word; and their products with a word of a magnitude
// below 2^15.
AETHER_INLINE IntVec widen_to_words(const uint8_t* p, int32_t offset = 0) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i less = _mm256_set1_epi32(offset);
  return {_mm256_sub_epi16(_mm256_cvtepu8_epi32(bytes), less),
          _mm256_sub_epi16(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), less)};
}
AETHER_INLINE IntVec multiply_small(const IntVec& w, const IntVec& x) {
  return {_mm256_madd_epi16(w.low, x.low), _mm256_madd_epi16(w.high, x.high)};
}
AETHER_INLINE Vec to_floats(const IntVec& v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }

// Field `Field` of `Bits` bits of every byte. A single bit is left as 0 or 2.
template <int Bits, int Field>
AETHER_INLINE __m256i fields_of(__m256i step) {
  if constexpr (Bits == 8) return step;
  const __m256i mask = _mm256_set1_epi8(Bits == 4 ? 15 : Bits == 2 ? 3 : 2);
  if constexpr (Bits == 1 && Field == 0) return _mm256_and_si256(_mm256_add_epi8(step, step), mask);
  constexpr int kShift = Bits == 1 ? Field - 1 : Bits * Field;
  return _mm256_and_si256(kShift ? _mm256_srli_epi16(step, kShift) : step, mask);
}
template <int Bits, int Field>
AETHER_INLINE IntVec fields_of(const IntVec& step) {
  return {fields_of<Bits, Field>(step.low), fields_of<Bits, Field>(step.high)};
}

AETHER_INLINE Vec magnitudes(const Vec& v) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
}
AETHER_INLINE __m256i rounded_to_shorts(const Vec& v) {
  return _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
}

// Thirty-two values as signed bytes.
AETHER_INLINE ByteBlock quantize_values(const Vec& low, const Vec& high, char* codes) {
  const float magnitude = reduce_max(max(magnitudes(low), magnitudes(high)));
  const Vec steps = set1(steps_per_one(magnitude));
  // Packing works within 128-bit halves, which leaves fours of values out of order.
  const __m256i packed = _mm256_packs_epi16(rounded_to_shorts(low * steps), rounded_to_shorts(high * steps));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permutevar8x32_epi32(packed, order));
  const __m256i eight = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), packed), _mm256_set1_epi16(1));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  const __m256 is_nan =
      _mm256_or_ps(_mm256_cmp_ps(low.low, low.high, _CMP_UNORD_Q), _mm256_cmp_ps(high.low, high.high, _CMP_UNORD_Q));
  return byte_block(magnitude, _mm256_movemask_ps(is_nan) != 0, sum);
}

}  // namespace aether::cpu::AETHER_ISA
