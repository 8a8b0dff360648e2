// simd/neon_bytes.h with the four-way dot product of signed bytes (ARMv8.2 dot product).
#pragma once

#include "simd/neon_bytes.h"

namespace aether::cpu::AETHER_ISA {

template <int Bits>
inline constexpr int32_t kCodeOffset = Bits == 8 ? 128 : 0;
inline constexpr bool kMultipliesCodesInPlace = false;
template <int Bits>
inline constexpr bool kAccumulatesInInt16 = false;

template <int Bits>
AETHER_INLINE int32x4_t dot_bytes(int32x4_t sum, int32x4_t w, int32x4_t x) {
  // Codes below 128 are the same as signed bytes.
  const int8x16_t codes = vreinterpretq_s8_s32(w);
  const int8x16_t signed_codes = Bits == 8 ? veorq_s8(codes, vdupq_n_s8(-128)) : codes;
  return vdotq_s32(sum, signed_codes, vreinterpretq_s8_s32(x));
}
template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(const IntVec& sum, const IntVec& w, const IntVec& x) {
  return {dot_bytes<Bits>(sum.a, w.a, x.a), dot_bytes<Bits>(sum.b, w.b, x.b), dot_bytes<Bits>(sum.c, w.c, x.c),
          dot_bytes<Bits>(sum.d, w.d, x.d)};
}

}  // namespace aether::cpu::AETHER_ISA
