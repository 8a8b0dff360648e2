// Int8 dot products for AVX2 with AVX-VNNI (VPDPBUSD). simd/int8_dot.h explains the constants.
#pragma once

#include "simd/avx2_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For 16 registers: a row takes two int32 accumulators; its float32 accumulators spill to memory.
inline constexpr int kInt8TileRows = 6;

template <int Bits>
inline constexpr int32_t kCodeOffset = 0;
inline constexpr bool kMultipliesCodesInPlace = true;
template <int Bits>
inline constexpr bool kAccumulatesInInt16 = false;

template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(const IntVec& sum, const IntVec& w, const IntVec& x) {
  return {_mm256_dpbusd_avx_epi32(sum.low, w.low, x.low), _mm256_dpbusd_avx_epi32(sum.high, w.high, x.high)};
}

}  // namespace aether::cpu::AETHER_ISA
