// Sixteen float lanes in two AVX2 registers, with FMA and F16C. The functions are those of simd/portable.h.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/bfloat16.h"
#include "simd/float16.h"
#include "simd/tuning.h"

#define AETHER_INLINE inline __attribute__((always_inline))

namespace aether::cpu::AETHER_ISA {

inline constexpr int kLanes = 16;

// Register tile of the matrix kernels, for 16 registers: 6 rows × 1 panel are 12 accumulators; two registers hold the
// panel's columns and one the broadcast activation.
inline constexpr int kTileRows = 6;
inline constexpr int kTilePanels = 1;

inline constexpr Tuning kTuning = {.min_prefetch_rows = 2, .gemv_prefetch_bytes = 1024};

struct Vec {
  __m256 low, high;
};

AETHER_INLINE Vec operator+(const Vec& x, const Vec& y) { return {x.low + y.low, x.high + y.high}; }
AETHER_INLINE Vec operator-(const Vec& x, const Vec& y) { return {x.low - y.low, x.high - y.high}; }
AETHER_INLINE Vec operator*(const Vec& x, const Vec& y) { return {x.low * y.low, x.high * y.high}; }
AETHER_INLINE Vec operator/(const Vec& x, const Vec& y) { return {x.low / y.low, x.high / y.high}; }
AETHER_INLINE Vec operator-(const Vec& x) { return {-x.low, -x.high}; }

AETHER_INLINE Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
AETHER_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
AETHER_INLINE Vec fma(const Vec& x, const Vec& y, const Vec& z) {
  return {_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)};
}
AETHER_INLINE Vec max(const Vec& x, const Vec& y) {
  return {_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high)};
}
AETHER_INLINE Vec min(const Vec& x, const Vec& y) {
  return {_mm256_min_ps(x.low, y.low), _mm256_min_ps(x.high, y.high)};
}

AETHER_INLINE __m128i load_eight(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
AETHER_INLINE void store_eight(uint16_t* p, __m128i h) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h); }

AETHER_INLINE __m256 widen(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }

// Round to nearest even; NaN becomes a quiet NaN.
AETHER_INLINE __m128i narrow(__m256 v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

AETHER_INLINE __m128i narrow_half(__m256 v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

AETHER_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
AETHER_INLINE Vec load(const BFloat16* p) { return {widen(load_eight(&p->bits)), widen(load_eight(&p->bits + 8))}; }
AETHER_INLINE Vec load(const Float16* p) {
  return {_mm256_cvtph_ps(load_eight(&p->bits)), _mm256_cvtph_ps(load_eight(&p->bits + 8))};
}

AETHER_INLINE void store(float* p, const Vec& v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
AETHER_INLINE void store(BFloat16* p, const Vec& v) {
  store_eight(&p->bits, narrow(v.low));
  store_eight(&p->bits + 8, narrow(v.high));
}
AETHER_INLINE void store(Float16* p, const Vec& v) {
  store_eight(&p->bits, narrow_half(v.low));
  store_eight(&p->bits + 8, narrow_half(v.high));
}

// The first n lanes (0 ≤ n ≤ 16); the other lanes load as zero. All sixteen are the common case; masked stores are slow
// on many CPUs.
template <class T>
AETHER_INLINE Vec load(const T* p, int64_t n) {
  if (n == kLanes) return load(p);
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}
template <class T>
AETHER_INLINE void store(T* p, const Vec& v, int64_t n) {
  if (n == kLanes) return store(p, v);
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// The even and the odd elements of sixteen pairs.
AETHER_INLINE Vec load_even(const BFloat16* p) {
  const __m256i* words = reinterpret_cast<const __m256i*>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words + 1), 16))};
}
// One instruction with a memory operand: keeping the words loaded by load_even would take registers from the
// accumulators.
AETHER_INLINE __m256 odd_ones(const __m256i* words) {
  __m256 odd;
  __asm__("vpblendw $0xaa, %1, %2, %0" : "=x"(odd) : "m"(*words), "x"(_mm256_setzero_si256()));
  return odd;
}
AETHER_INLINE Vec load_odd(const BFloat16* p) {
  const __m256i* words = reinterpret_cast<const __m256i*>(p);
  return {odd_ones(words), odd_ones(words + 1)};
}

// Sixteen 8-bit codes of a quantised KV cache (kernels/kv_quantization.h) as floats: int8, and E4M3 scaled by 2^-8. An
// E4M3 number shifted left by 7 bits is a float16; sign extension sets one bit too many, which the mask clears.
AETHER_INLINE __m128i sixteen_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
AETHER_INLINE Vec load_integer_codes(const void* p) {
  const __m128i bytes = sixteen_bytes(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
AETHER_INLINE Vec load_e4m3_codes(const void* p) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen_bytes(p)), 7);
  const __m256i halves = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), shifted);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

// Truncates to bfloat16; exact for values that a bfloat16 holds.
AETHER_INLINE __m256i high_halves(__m256 v) { return _mm256_srli_epi32(_mm256_castps_si256(v), 16); }
AETHER_INLINE void store_exact(BFloat16* p, const Vec& v) {
  const __m256i quarters = _mm256_packus_epi32(high_halves(v.low), high_halves(v.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(quarters, 0xd8));
}

// Sixteen unsigned bytes as floats; and (word >> shift) & mask of sixteen 32-bit words as floats (mask below 2^24).
AETHER_INLINE Vec load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}

// 2^(byte − 127) of sixteen unsigned bytes up to 254, exactly; that of 0 is subnormal.
AETHER_INLINE __m256 power_of_two(__m256i exponents) {
  const __m256i least = _mm256_set1_epi32(0x00400000);
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(exponents, 23), least));
}
AETHER_INLINE Vec load_powers_of_two(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {power_of_two(_mm256_cvtepu8_epi32(bytes)), power_of_two(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
AETHER_INLINE __m256 bit_field(const char* words, int shift, uint32_t mask) {
  const __m256i shifted = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), shift);
  return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(static_cast<int>(mask))));
}
AETHER_INLINE Vec load_bit_fields(const char* words, int shift, uint32_t mask) {
  return {bit_field(words, shift, mask), bit_field(words + 32, shift, mask)};
}

AETHER_INLINE float first_lane(const Vec& v) { return _mm256_cvtss_f32(v.low); }
AETHER_INLINE float reduce_add(const Vec& v) {
  const __m256 eight = v.low + v.high;
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
}
AETHER_INLINE double reduce_add_double(const Vec& v) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v.low)) + _mm256_cvtps_pd(_mm256_castps256_ps128(v.high));
  const __m256d high =
      _mm256_cvtps_pd(_mm256_extractf128_ps(v.low, 1)) + _mm256_cvtps_pd(_mm256_extractf128_ps(v.high, 1));
  const __m256d four = low + high;
  return (four[0] + four[1]) + (four[2] + four[3]);
}
AETHER_INLINE float reduce_max(const Vec& v) {
  const __m256 eight = _mm256_max_ps(v.low, v.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

AETHER_INLINE uint32_t mask_of(__m256 low, __m256 high) {
  return static_cast<uint32_t>(_mm256_movemask_ps(low)) | static_cast<uint32_t>(_mm256_movemask_ps(high)) << 8;
}
AETHER_INLINE uint32_t greater_mask(const Vec& x, const Vec& y) {
  return mask_of(_mm256_cmp_ps(x.low, y.low, _CMP_GT_OQ), _mm256_cmp_ps(x.high, y.high, _CMP_GT_OQ));
}
AETHER_INLINE uint32_t greater_equal_mask(const Vec& x, const Vec& y) {
  return mask_of(_mm256_cmp_ps(x.low, y.low, _CMP_GE_OQ), _mm256_cmp_ps(x.high, y.high, _CMP_GE_OQ));
}

// p · 2^n for integral n; subnormal results flush to zero.
AETHER_INLINE __m256 scale_by_power_of_two(__m256 p, __m256 n) {
  // 2^128 has no float, so the last doubling is an addition of its own.
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(126));
  const __m256i bits = _mm256_slli_epi32(_mm256_max_epi32(biased, _mm256_setzero_si256()), 23);
  const __m256 half = p * _mm256_castsi256_ps(bits);
  return half + half;
}
AETHER_INLINE Vec scale_by_power_of_two(const Vec& p, const Vec& n) {
  return {scale_by_power_of_two(p.low, n.low), scale_by_power_of_two(p.high, n.high)};
}
AETHER_INLINE Vec round_to_integer(const Vec& x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kNearest), _mm256_round_ps(x.high, kNearest)};
}

// out[word][row] of eight rows by eight words; `out` has lines of 64 bytes.
AETHER_INLINE void transpose_eight(const char* const* rows, size_t offset, int64_t num_words, char* out) {
  __m256 a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i] + offset));
  // Two rounds within 128-bit halves, one that moves halves.
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x20);
    b[4 + i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    if (i < num_words) _mm256_storeu_ps(reinterpret_cast<float*>(out + i * 64), b[i]);
  }
}

// out[word][row] for sixteen rows of up to 64 bytes; bytes past `bytes` read as zero.
AETHER_INLINE void transpose_words(const char* const (&rows)[16], size_t bytes, int64_t num_words, char* out) {
  char padded[16][64];
  const char* whole[16];
  for (int i = 0; i < 16; ++i) {
    whole[i] = rows[i];
    if (bytes < 64) {
      std::memset(padded[i], 0, 64);
      std::memcpy(padded[i], rows[i], bytes);
      whole[i] = padded[i];
    }
  }
  for (int first = 0; first < 16; first += 8) {
    transpose_eight(whole + first, 0, num_words, out + first * 4);
    transpose_eight(whole + first, 32, num_words - 8, out + 8 * 64 + first * 4);
  }
}

}  // namespace aether::cpu::AETHER_ISA

#include "simd/exp.h"
