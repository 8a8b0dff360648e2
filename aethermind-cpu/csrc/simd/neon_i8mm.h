// simd/neon_bytes.h with the four-way dot product of unsigned by signed bytes (ARMv8.6 int8 matrix multiplication).
#pragma once

#include "simd/neon_bytes.h"

namespace aether::cpu::AETHER_ISA {

template <int Bits>
inline constexpr int32_t kCodeOffset = 0;
inline constexpr bool kMultipliesCodesInPlace = false;
template <int Bits>
inline constexpr bool kAccumulatesInInt16 = false;

AETHER_INLINE int32x4_t dot_bytes(int32x4_t sum, int32x4_t w, int32x4_t x) {
  return vusdotq_s32(sum, vreinterpretq_u8_s32(w), vreinterpretq_s8_s32(x));
}
template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(const IntVec& sum, const IntVec& w, const IntVec& x) {
  return {dot_bytes(sum.a, w.a, x.a), dot_bytes(sum.b, w.b, x.b), dot_bytes(sum.c, w.c, x.c),
          dot_bytes(sum.d, w.d, x.d)};
}

}  // namespace aether::cpu::AETHER_ISA
