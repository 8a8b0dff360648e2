// Sixteen float lanes in one AVX-512 register. The functions are those of simd/portable.h.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/bfloat16.h"
#include "simd/float16.h"
#include "simd/tuning.h"

#define AETHER_HAS_WIDE_SHUFFLE 1  // of the 16-bit elements of two registers, in one instruction

#define AETHER_INLINE inline __attribute__((always_inline))

namespace aether::cpu::AETHER_ISA {

inline constexpr int kLanes = 16;

// Register tile of the matrix kernels, for 32 registers: 12 rows × 2 panels are 24 accumulators and leave 8 registers
// for operands. Two panels give a single row two independent FMA chains.
inline constexpr int kTileRows = 12;
inline constexpr int kTilePanels = 2;

inline constexpr Tuning kTuning = {.gemv_prefetch_bytes = 1024};

using Vec = __m512;

AETHER_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
AETHER_INLINE Vec zero() { return _mm512_setzero_ps(); }
AETHER_INLINE Vec fma(Vec x, Vec y, Vec z) { return _mm512_fmadd_ps(x, y, z); }
AETHER_INLINE Vec max(Vec x, Vec y) { return _mm512_max_ps(x, y); }
AETHER_INLINE Vec min(Vec x, Vec y) { return _mm512_min_ps(x, y); }

AETHER_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

AETHER_INLINE __m512 widen(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }

// Round to nearest even; NaN becomes a quiet NaN. VCVTNEPS2BF16 flushes denormals to zero, as
// VDPBF16PS treats them.
#ifdef __AVX512BF16__
AETHER_INLINE __m256i narrow(Vec v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
#else
AETHER_INLINE __m256i narrow(Vec v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40)));
}
#endif

AETHER_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
AETHER_INLINE Vec load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
AETHER_INLINE Vec load(const BFloat16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
AETHER_INLINE Vec load(const BFloat16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
AETHER_INLINE Vec load(const Float16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
AETHER_INLINE Vec load(const Float16* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

AETHER_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
AETHER_INLINE void store(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
AETHER_INLINE void store(BFloat16* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v)); }
AETHER_INLINE void store(BFloat16* p, Vec v, int64_t n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(v)); }
AETHER_INLINE __m256i narrow_half(Vec v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
AETHER_INLINE void store(Float16* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_half(v)); }
AETHER_INLINE void store(Float16* p, Vec v, int64_t n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_half(v)); }

// The even and the odd elements of sixteen pairs.
AETHER_INLINE Vec load_even(const BFloat16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
AETHER_INLINE Vec load_odd(const BFloat16* p) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), mask));
}

// Sixteen 8-bit codes of a quantised KV cache (kernels/kv_quantization.h) as floats: int8, and E4M3 scaled by 2^-8. An
// E4M3 number shifted left by 7 bits is a float16; sign extension sets one bit too many, which the mask clears.
AETHER_INLINE __m128i sixteen_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
AETHER_INLINE Vec load_integer_codes(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen_bytes(p)));
}
AETHER_INLINE Vec load_e4m3_codes(const void* p) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen_bytes(p)), 7);
  return _mm512_cvtph_ps(_mm256_andnot_si256(_mm256_set1_epi16(0x4000), shifted));
}

// Truncates to bfloat16; exact for values that a bfloat16 holds.
AETHER_INLINE void store_exact(BFloat16* p, Vec v) {
  const __m512i words = _mm512_srli_epi32(_mm512_castps_si512(v), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
}

// Sixteen unsigned bytes as floats; and (word >> shift) & mask of sixteen 32-bit words as floats (mask below 2^24).
AETHER_INLINE Vec load_bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// 2^(byte − 127) of sixteen unsigned bytes up to 254, exactly; that of 0 is subnormal.
AETHER_INLINE Vec load_powers_of_two(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
}
AETHER_INLINE Vec load_bit_fields(const char* words, int shift, uint32_t mask) {
  const __m512i shifted = _mm512_srli_epi32(_mm512_loadu_si512(words), static_cast<unsigned>(shift));
  return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(static_cast<int>(mask))));
}

AETHER_INLINE float first_lane(Vec v) { return _mm512_cvtss_f32(v); }
AETHER_INLINE float reduce_add(Vec v) { return _mm512_reduce_add_ps(v); }
AETHER_INLINE double reduce_add_double(Vec v) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}
AETHER_INLINE float reduce_max(Vec v) { return _mm512_reduce_max_ps(v); }

AETHER_INLINE uint32_t greater_mask(Vec x, Vec y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ); }
AETHER_INLINE uint32_t greater_equal_mask(Vec x, Vec y) { return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ); }

AETHER_INLINE Vec scale_by_power_of_two(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }
AETHER_INLINE Vec round_to_integer(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// out[word][row] for sixteen rows of up to 64 bytes; bytes past `bytes` read as zero.
AETHER_INLINE void transpose_words(const char* const (&rows)[16], size_t bytes, int64_t num_words, char* out) {
  const __mmask64 present = bytes >= 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1;
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_maskz_loadu_epi8(present, rows[i]);
  // A butterfly of four stages: two within 128-bit lanes, two that move lanes.
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4 g + w]: of rows 4 g … 4 g + 3, quarter q holds word 4 q + w.
#pragma GCC unroll 4
  for (int w = 0; w < 4; ++w) {
    const __m512i low01 = _mm512_shuffle_i32x4(a[w], a[4 + w], 0x44),
                  high01 = _mm512_shuffle_i32x4(a[w], a[4 + w], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0x44),
                  high23 = _mm512_shuffle_i32x4(a[8 + w], a[12 + w], 0xee);
    b[w] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    b[4 + w] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    b[8 + w] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    b[12 + w] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i < num_words) _mm512_storeu_si512(out + i * 64, b[i]);
  }
}

}  // namespace aether::cpu::AETHER_ISA

#include "simd/exp.h"
