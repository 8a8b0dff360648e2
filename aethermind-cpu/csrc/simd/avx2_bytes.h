// simd/avx2.h plus 32-bit integer lanes of four bytes each (simd/int8_dot.h).
#pragma once

#include "simd/avx2.h"
#include "simd/int8_dot.h"

namespace aether::cpu::AETHER_ISA {

// Sixteen 32-bit lanes: an integer or four bytes each.
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

// Sixteen unsigned bytes minus `offset`, widened to the low half of a word; and their product with words of magnitudes
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
AETHER_INLINE IntVec add_words(const IntVec& x, const IntVec& y) {
  return {_mm256_add_epi32(x.low, y.low), _mm256_add_epi32(x.high, y.high)};
}
AETHER_INLINE __m256i add_int16_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }
AETHER_INLINE IntVec add_int16_pairs(const IntVec& words) {
  return {add_int16_pairs(words.low), add_int16_pairs(words.high)};
}
AETHER_INLINE Vec to_floats(const IntVec& v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }

// Unpacks code number `Field`, of `Bits` bits, of every byte. 1-bit codes become 0 or 2.
template <int Bits, int Field>
AETHER_INLINE __m256i unpack_codes(__m256i step) {
  if constexpr (Bits == 8) return step;
  const __m256i mask = _mm256_set1_epi8(Bits == 4 ? 15 : Bits == 2 ? 3 : 2);
  if constexpr (Bits == 1 && Field == 0) return _mm256_and_si256(_mm256_add_epi8(step, step), mask);
  constexpr int kShift = Bits == 1 ? Field - 1 : Bits * Field;
  return _mm256_and_si256(kShift ? _mm256_srli_epi16(step, kShift) : step, mask);
}
template <int Bits, int Field>
AETHER_INLINE IntVec unpack_codes(const IntVec& step) {
  return {unpack_codes<Bits, Field>(step.low), unpack_codes<Bits, Field>(step.high)};
}

// The byte of a table at the index, 0 to 15, in every byte.
AETHER_INLINE IntVec look_up_bytes(const uint8_t (&table)[16], const IntVec& indices) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(both, indices.low), _mm256_shuffle_epi8(both, indices.high)};
}

// Masks code number `Field` of every byte without shifting it down: 2^(Bits · Field) times the code.
template <int Bits, int Field>
AETHER_INLINE IntVec mask_codes(const IntVec& step) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << Bits) - 1) << (Bits * Field)));
  return {_mm256_and_si256(step.low, mask), _mm256_and_si256(step.high, mask)};
}
template <int Bits>
AETHER_INLINE IntVec shift_words_right(const IntVec& v) {
  return {_mm256_srai_epi32(v.low, Bits), _mm256_srai_epi32(v.high, Bits)};
}

// Compares bit patterns as integers: the order of magnitudes, with NaN the largest.
AETHER_INLINE __m256 larger_magnitude(__m256 largest, __m256 x) {
  const __m256i magnitude = _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x));
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(largest), magnitude));
}
AETHER_INLINE Vec larger_magnitude(const Vec& largest, const Vec& x) {
  return {larger_magnitude(largest.low, x.low), larger_magnitude(largest.high, x.high)};
}
AETHER_INLINE float reduce_magnitude(const Vec& largest) {
  const __m256i eight = _mm256_castps_si256(larger_magnitude(largest.low, largest.high));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

AETHER_INLINE __m256i rounded_to_shorts(const Vec& v) {
  return _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
}

AETHER_INLINE int32_t round_to_bytes(const Vec& low, const Vec& high, char* codes) {
  // Packing works within 128-bit lanes, so groups of four values need reordering.
  const __m256i packed = _mm256_packs_epi16(rounded_to_shorts(low), rounded_to_shorts(high));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permutevar8x32_epi32(packed, order));
  const __m256i eight = add_int16_pairs(_mm256_maddubs_epi16(_mm256_set1_epi8(1), packed));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

}  // namespace aether::cpu::AETHER_ISA
