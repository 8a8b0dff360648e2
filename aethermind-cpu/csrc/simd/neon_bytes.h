// simd/neon.h plus 32-bit integer lanes of four bytes each (simd/int8_dot.h).
#pragma once

#include "simd/int8_dot.h"
#include "simd/neon.h"

namespace aether::cpu::AETHER_ISA {

// For 32 registers: a row takes four int32 accumulators; its float32 accumulators spill to memory.
inline constexpr int kInt8TileRows = 6;

// Sixteen 32-bit lanes: an integer or four bytes each.
struct IntVec {
  int32x4_t a, b, c, d;
};

template <class F>
AETHER_INLINE IntVec map(const IntVec& x, F f) {
  return {f(x.a), f(x.b), f(x.c), f(x.d)};
}

AETHER_INLINE IntVec load_words(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return {vreinterpretq_s32_u8(vld1q_u8(bytes)), vreinterpretq_s32_u8(vld1q_u8(bytes + 16)),
          vreinterpretq_s32_u8(vld1q_u8(bytes + 32)), vreinterpretq_s32_u8(vld1q_u8(bytes + 48))};
}
AETHER_INLINE IntVec broadcast_word(const char* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  const int32x4_t v = vdupq_n_s32(word);
  return {v, v, v, v};
}

// Sixteen unsigned bytes minus `offset`, widened to words; and the product of words.
AETHER_INLINE int32x4_t widen_to_words(uint16x4_t shorts, int32_t offset) {
  return vsubq_s32(vreinterpretq_s32_u32(vmovl_u16(shorts)), vdupq_n_s32(offset));
}
AETHER_INLINE IntVec widen_to_words(const uint8_t* p, int32_t offset = 0) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return {widen_to_words(vget_low_u16(low), offset), widen_to_words(vget_high_u16(low), offset),
          widen_to_words(vget_low_u16(high), offset), widen_to_words(vget_high_u16(high), offset)};
}
AETHER_INLINE IntVec multiply_small(const IntVec& w, const IntVec& x) {
  return {vmulq_s32(w.a, x.a), vmulq_s32(w.b, x.b), vmulq_s32(w.c, x.c), vmulq_s32(w.d, x.d)};
}
AETHER_INLINE IntVec add_words(const IntVec& x, const IntVec& y) {
  return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)};
}
AETHER_INLINE Vec to_floats(const IntVec& v) {
  return {vcvtq_f32_s32(v.a), vcvtq_f32_s32(v.b), vcvtq_f32_s32(v.c), vcvtq_f32_s32(v.d)};
}

// Unpacks code number `Field`, of `Bits` bits, of every byte. 1-bit codes become 0 or 2.
template <int Bits, int Field>
AETHER_INLINE int32x4_t unpack_codes(int32x4_t step) {
  if constexpr (Bits == 8) return step;
  const uint8x16_t bytes = vreinterpretq_u8_s32(step);
  const uint8x16_t mask = vdupq_n_u8(Bits == 4 ? 15 : Bits == 2 ? 3 : 2);
  constexpr int kShift = Bits == 1 ? Field - 1 : Bits * Field;
  if constexpr (kShift < 0) {
    return vreinterpretq_s32_u8(vandq_u8(vshlq_n_u8(bytes, 1), mask));
  } else if constexpr (kShift == 0) {
    return vreinterpretq_s32_u8(vandq_u8(bytes, mask));
  } else if constexpr (kShift + Bits == 8 && Bits > 1) {
    return vreinterpretq_s32_u8(vshrq_n_u8(bytes, kShift));
  } else {
    return vreinterpretq_s32_u8(vandq_u8(vshrq_n_u8(bytes, kShift), mask));
  }
}
template <int Bits, int Field>
AETHER_INLINE IntVec unpack_codes(const IntVec& step) {
  return map(step, [](int32x4_t four) __attribute__((always_inline)) { return unpack_codes<Bits, Field>(four); });
}

// The byte of a table at the index, 0 to 15, in every byte.
AETHER_INLINE IntVec look_up_bytes(const uint8_t (&table)[16], const IntVec& indices) {
  const uint8x16_t bytes = vld1q_u8(table);
  return map(indices, [bytes](int32x4_t four) __attribute__((always_inline)) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(bytes, vreinterpretq_u8_s32(four)));
  });
}

// vmaxq is NaN where either operand is.
AETHER_INLINE Vec larger_magnitude(const Vec& largest, const Vec& x) {
  return {vmaxq_f32(largest.a, vabsq_f32(x.a)), vmaxq_f32(largest.b, vabsq_f32(x.b)),
          vmaxq_f32(largest.c, vabsq_f32(x.c)), vmaxq_f32(largest.d, vabsq_f32(x.d))};
}
AETHER_INLINE float reduce_magnitude(const Vec& largest) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(largest.a, largest.b), vmaxq_f32(largest.c, largest.d)));
}

AETHER_INLINE int8x16_t rounded_to_bytes(const Vec& v) {
  const int16x8_t low = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(v.a)), vmovn_s32(vcvtnq_s32_f32(v.b)));
  const int16x8_t high = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(v.c)), vmovn_s32(vcvtnq_s32_f32(v.d)));
  return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
}

AETHER_INLINE int32_t round_to_bytes(const Vec& low, const Vec& high, char* codes) {
  const int8x16_t a = rounded_to_bytes(low), b = rounded_to_bytes(high);
  vst1q_s8(reinterpret_cast<int8_t*>(codes), a);
  vst1q_s8(reinterpret_cast<int8_t*>(codes) + 16, b);
  return vaddlvq_s8(a) + vaddlvq_s8(b);
}

}  // namespace aether::cpu::AETHER_ISA
