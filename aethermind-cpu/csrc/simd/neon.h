// Sixteen float lanes in four NEON registers, for any CPU of the ARMv8-A family. The functions are those of
// simd/portable.h.
#pragma once

#include <arm_neon.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/bfloat16.h"
#include "simd/float16.h"
#include "simd/tuning.h"

#define AETHER_INLINE inline __attribute__((always_inline))

namespace aether::cpu::AETHER_ISA {

inline constexpr int kLanes = 16;

// Register tile of the matrix kernels, for 32 registers: 6 rows × 1 panel are 24 accumulators; four registers hold the
// panel's columns and one the broadcast activation.
inline constexpr int kTileRows = 6;
inline constexpr int kTilePanels = 1;

inline constexpr Tuning kTuning = {};

struct Vec {
  float32x4_t a, b, c, d;
};

AETHER_INLINE Vec operator+(const Vec& x, const Vec& y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
AETHER_INLINE Vec operator-(const Vec& x, const Vec& y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
AETHER_INLINE Vec operator*(const Vec& x, const Vec& y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
AETHER_INLINE Vec operator/(const Vec& x, const Vec& y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
AETHER_INLINE Vec operator-(const Vec& x) { return {-x.a, -x.b, -x.c, -x.d}; }

AETHER_INLINE Vec set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
AETHER_INLINE Vec zero() { return set1(0.0f); }
AETHER_INLINE Vec fma(const Vec& x, const Vec& y, const Vec& z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
AETHER_INLINE float32x4_t greater(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
AETHER_INLINE float32x4_t lesser(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
// The second operand where either is NaN, as on x86; vmaxq and vminq return NaN instead.
AETHER_INLINE Vec max(const Vec& x, const Vec& y) {
  return {greater(x.a, y.a), greater(x.b, y.b), greater(x.c, y.c), greater(x.d, y.d)};
}
AETHER_INLINE Vec min(const Vec& x, const Vec& y) {
  return {lesser(x.a, y.a), lesser(x.b, y.b), lesser(x.c, y.c), lesser(x.d, y.d)};
}

AETHER_INLINE Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
AETHER_INLINE void store(float* p, const Vec& v) {
  vst1q_f32(p, v.a);
  vst1q_f32(p + 4, v.b);
  vst1q_f32(p + 8, v.c);
  vst1q_f32(p + 12, v.d);
}

// A bfloat16 is the high half of a float: zipping it with zeros widens it.
AETHER_INLINE float32x4_t widen_low(uint16x8_t h) { return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), h)); }
AETHER_INLINE float32x4_t widen_high(uint16x8_t h) { return vreinterpretq_f32_u16(vzip2q_u16(vdupq_n_u16(0), h)); }
AETHER_INLINE Vec load(const BFloat16* p) {
  const uint16x8_t low = vld1q_u16(&p->bits), high = vld1q_u16(&p->bits + 8);
  return {widen_low(low), widen_high(low), widen_low(high), widen_high(high)};
}

// Round to nearest even; NaN becomes a quiet NaN.
AETHER_INLINE uint16x4_t narrow(float32x4_t v) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint16x4_t rounded = vaddhn_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint16x4_t quiet = vorr_u16(vshrn_n_u32(u, 16), vdup_n_u16(0x40));
  return vbsl_u16(vmovn_u32(vceqq_f32(v, v)), rounded, quiet);
}
AETHER_INLINE void store(BFloat16* p, const Vec& v) {
  vst1q_u16(&p->bits, vcombine_u16(narrow(v.a), narrow(v.b)));
  vst1q_u16(&p->bits + 8, vcombine_u16(narrow(v.c), narrow(v.d)));
}

// Conversions from and to float16 are part of ARMv8-A, arithmetic is not.
AETHER_INLINE float32x4_t widen_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
AETHER_INLINE Vec load(const Float16* p) {
  const uint16_t* bits = &p->bits;
  return {widen_half(bits), widen_half(bits + 4), widen_half(bits + 8), widen_half(bits + 12)};
}
AETHER_INLINE void narrow_half(uint16_t* p, float32x4_t v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
AETHER_INLINE void store(Float16* p, const Vec& v) {
  uint16_t* bits = &p->bits;
  narrow_half(bits, v.a);
  narrow_half(bits + 4, v.b);
  narrow_half(bits + 8, v.c);
  narrow_half(bits + 12, v.d);
}

// The first n lanes (0 ≤ n ≤ 16); the other lanes load as zero. All sixteen are the common case.
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
AETHER_INLINE float32x4_t even_of(const uint16_t* pairs) {
  return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(pairs)), 16));
}
AETHER_INLINE float32x4_t odd_of(const uint16_t* pairs) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(pairs)), vdupq_n_u32(0xffff0000u)));
}
AETHER_INLINE Vec load_even(const BFloat16* p) {
  const uint16_t* bits = &p->bits;
  return {even_of(bits), even_of(bits + 8), even_of(bits + 16), even_of(bits + 24)};
}
AETHER_INLINE Vec load_odd(const BFloat16* p) {
  const uint16_t* bits = &p->bits;
  return {odd_of(bits), odd_of(bits + 8), odd_of(bits + 16), odd_of(bits + 24)};
}

// Sixteen 8-bit codes of a quantised KV cache (kernels/kv_quantization.h) as floats: int8, and E4M3 scaled by 2^-8. An
// E4M3 number shifted left by 7 bits is a float16; sign extension sets one bit too many, which the mask clears.
AETHER_INLINE float32x4_t integers_low(int16x8_t v) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))); }
AETHER_INLINE float32x4_t integers_high(int16x8_t v) { return vcvtq_f32_s32(vmovl_high_s16(v)); }
AETHER_INLINE Vec load_integer_codes(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {integers_low(low), integers_high(low), integers_low(high), integers_high(high)};
}
AETHER_INLINE float16x8_t halves_of_e4m3(int16x8_t codes) {
  return vreinterpretq_f16_s16(vbicq_s16(vshlq_n_s16(codes, 7), vdupq_n_s16(0x4000)));
}
AETHER_INLINE Vec load_e4m3_codes(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
  const float16x8_t low = halves_of_e4m3(vmovl_s8(vget_low_s8(bytes))), high = halves_of_e4m3(vmovl_high_s8(bytes));
  return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
          vcvt_high_f32_f16(high)};
}

// Truncates to bfloat16; exact for values that a bfloat16 holds.
AETHER_INLINE uint16x8_t high_halves(float32x4_t low, float32x4_t high) {
  return vuzp2q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high));
}
AETHER_INLINE void store_exact(BFloat16* p, const Vec& v) {
  vst1q_u16(&p->bits, high_halves(v.a, v.b));
  vst1q_u16(&p->bits + 8, high_halves(v.c, v.d));
}

// Sixteen unsigned bytes as floats; and (word >> shift) & mask of sixteen 32-bit words as floats (mask below 2^24).
AETHER_INLINE Vec load_bytes(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
          vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))};
}

// 2^(byte − 127) of sixteen unsigned bytes up to 254, exactly; that of 0 is subnormal.
AETHER_INLINE float32x4_t power_of_two(uint16x4_t exponents) {
  return vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(vmovl_u16(exponents), 23), vdupq_n_u32(0x00400000u)));
}
AETHER_INLINE Vec load_powers_of_two(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return {power_of_two(vget_low_u16(low)), power_of_two(vget_high_u16(low)), power_of_two(vget_low_u16(high)),
          power_of_two(vget_high_u16(high))};
}
AETHER_INLINE float32x4_t bit_field(const char* words, int shift, uint32_t mask) {
  const uint32x4_t w = vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(words)));
  return vcvtq_f32_u32(vandq_u32(vshlq_u32(w, vdupq_n_s32(-shift)), vdupq_n_u32(mask)));
}
AETHER_INLINE Vec load_bit_fields(const char* words, int shift, uint32_t mask) {
  return {bit_field(words, shift, mask), bit_field(words + 16, shift, mask), bit_field(words + 32, shift, mask),
          bit_field(words + 48, shift, mask)};
}

AETHER_INLINE float first_lane(const Vec& v) { return vgetq_lane_f32(v.a, 0); }
AETHER_INLINE float reduce_add(const Vec& v) { return vaddvq_f32((v.a + v.b) + (v.c + v.d)); }
AETHER_INLINE float64x2_t pair_sums(float32x4_t v) { return vcvt_f64_f32(vget_low_f32(v)) + vcvt_high_f64_f32(v); }
AETHER_INLINE double reduce_add_double(const Vec& v) {
  return vaddvq_f64((pair_sums(v.a) + pair_sums(v.b)) + (pair_sums(v.c) + pair_sums(v.d)));
}
AETHER_INLINE float reduce_max(const Vec& v) {
  return vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(v.a, v.b), vmaxnmq_f32(v.c, v.d)));
}

// Bit i is lane i.
AETHER_INLINE uint32_t mask_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  const uint32x4_t bits = {1, 2, 4, 8};
  const uint32x4_t low = vorrq_u32(vandq_u32(a, bits), vandq_u32(b, vshlq_n_u32(bits, 4)));
  const uint32x4_t high = vorrq_u32(vandq_u32(c, vshlq_n_u32(bits, 8)), vandq_u32(d, vshlq_n_u32(bits, 12)));
  return vaddvq_u32(vorrq_u32(low, high));
}
AETHER_INLINE uint32_t greater_mask(const Vec& x, const Vec& y) {
  return mask_of(vcgtq_f32(x.a, y.a), vcgtq_f32(x.b, y.b), vcgtq_f32(x.c, y.c), vcgtq_f32(x.d, y.d));
}
AETHER_INLINE uint32_t greater_equal_mask(const Vec& x, const Vec& y) {
  return mask_of(vcgeq_f32(x.a, y.a), vcgeq_f32(x.b, y.b), vcgeq_f32(x.c, y.c), vcgeq_f32(x.d, y.d));
}

// p · 2^n for integral n; subnormal results flush to zero.
AETHER_INLINE float32x4_t scale_by_power_of_two(float32x4_t p, float32x4_t n) {
  // 2^128 has no float, so the last doubling is an addition of its own.
  const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(126));
  const int32x4_t bits = vshlq_n_s32(vmaxq_s32(biased, vdupq_n_s32(0)), 23);
  const float32x4_t half = p * vreinterpretq_f32_s32(bits);
  return half + half;
}
AETHER_INLINE Vec scale_by_power_of_two(const Vec& p, const Vec& n) {
  return {scale_by_power_of_two(p.a, n.a), scale_by_power_of_two(p.b, n.b), scale_by_power_of_two(p.c, n.c),
          scale_by_power_of_two(p.d, n.d)};
}
AETHER_INLINE Vec round_to_integer(const Vec& x) {
  return {vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)};
}

// out[word][row] of four rows by four words; `out` has lines of 64 bytes.
AETHER_INLINE void transpose_four(const char* const* rows, size_t offset, int64_t num_words, char* out) {
  uint32x4_t a[4], b[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(rows[i] + offset)));
  }
  for (int i = 0; i < 4; i += 2) {
    b[i] = vtrn1q_u32(a[i], a[i + 1]);
    b[i + 1] = vtrn2q_u32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    const uint64x2_t first = vreinterpretq_u64_u32(b[i]), second = vreinterpretq_u64_u32(b[2 + i]);
    a[i] = vreinterpretq_u32_u64(vtrn1q_u64(first, second));
    a[2 + i] = vreinterpretq_u32_u64(vtrn2q_u64(first, second));
  }
  for (int i = 0; i < 4; ++i) {
    if (i < num_words) vst1q_u8(reinterpret_cast<uint8_t*>(out + i * 64), vreinterpretq_u8_u32(a[i]));
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
  for (int row = 0; row < 16; row += 4) {
    for (int64_t word = 0; word < num_words; word += 4) {
      transpose_four(whole + row, static_cast<size_t>(word) * 4, num_words - word, out + word * 64 + row * 4);
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA

#include "simd/exp.h"
