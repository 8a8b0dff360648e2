// simd/avx512.h plus 32-bit integer lanes of four bytes each (simd/int8_dot.h).
#pragma once

#include "simd/avx512.h"
#include "simd/int8_dot.h"

namespace aether::cpu::AETHER_ISA {

using IntVec = __m512i;  // sixteen 32-bit lanes: an integer or four bytes each

AETHER_INLINE IntVec load_words(const void* p) { return _mm512_loadu_si512(p); }
AETHER_INLINE IntVec broadcast_word(const char* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// Sixteen unsigned bytes minus `offset`, widened to the low half of a word; and their product with words of magnitudes
// below 2^15.
AETHER_INLINE IntVec widen_to_words(const uint8_t* p, int32_t offset = 0) {
  const IntVec words = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_sub_epi16(words, _mm512_set1_epi32(offset));
}
AETHER_INLINE IntVec multiply_small(IntVec w, IntVec x) { return _mm512_madd_epi16(w, x); }
AETHER_INLINE IntVec add_words(IntVec x, IntVec y) { return _mm512_add_epi32(x, y); }
AETHER_INLINE Vec to_floats(IntVec v) { return _mm512_cvtepi32_ps(v); }

// Unpacks code number `Field`, of `Bits` bits, of every byte. 1-bit codes become 0 or 2.
template <int Bits, int Field>
AETHER_INLINE IntVec unpack_codes(IntVec step) {
  if constexpr (Bits == 8) return step;
  const IntVec mask = _mm512_set1_epi8(Bits == 4 ? 15 : Bits == 2 ? 3 : 2);
  if constexpr (Bits == 1 && Field == 0) return _mm512_and_si512(_mm512_add_epi8(step, step), mask);
  constexpr unsigned kShift = Bits == 1 ? Field - 1 : Bits * Field;
  return _mm512_and_si512(kShift ? _mm512_srli_epi16(step, kShift) : step, mask);
}

// The byte of a table at the index, 0 to 15, in every byte.
AETHER_INLINE IntVec look_up_bytes(const uint8_t (&table)[16], IntVec indices) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), indices);
}

// Masks code number `Field` of every byte without shifting it down: 2^(Bits · Field) times the code.
template <int Bits, int Field>
AETHER_INLINE IntVec mask_codes(IntVec step) {
  return _mm512_and_si512(step, _mm512_set1_epi8(static_cast<char>(((1 << Bits) - 1) << (Bits * Field))));
}
template <unsigned Bits>
AETHER_INLINE IntVec shift_words_right(IntVec v) {
  return _mm512_srai_epi32(v, Bits);
}

// Compares bit patterns as integers: the order of magnitudes, with NaN the largest.
AETHER_INLINE Vec larger_magnitude(Vec largest, Vec x) {
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(largest), _mm512_castps_si512(_mm512_abs_ps(x))));
}
AETHER_INLINE float reduce_magnitude(Vec largest) {
  const __m512i sixteen = _mm512_castps_si512(largest);
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(sixteen), _mm512_extracti32x8_epi32(sixteen, 1));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

AETHER_INLINE int32_t round_to_bytes(Vec low, Vec high, char* codes) {
  const __m128i a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(low));
  const __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16), b);
  const __m128i ones = _mm_set1_epi8(1);
  const __m128i pairs = _mm_add_epi16(_mm_maddubs_epi16(ones, a), _mm_maddubs_epi16(ones, b));
  const __m128i four = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

}  // namespace aether::cpu::AETHER_ISA
