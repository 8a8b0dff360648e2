// simd/avx2_bytes.h with the four-way dot product of bytes (AVX-VNNI).
#pragma once

#include "simd/avx2_bytes.h"

namespace aether::cpu::AETHER_ISA {

// For sixteen registers: each row has two accumulators of integers; its floats wait in memory.
inline constexpr int kByteTileRows = 6;

template <int Bits>
inline constexpr int32_t kCodeOffset = 0;
inline constexpr bool kMultipliesFieldsInPlace = true;
template <int Bits>
inline constexpr bool kSumsUnitsInHalves = false;

template <int Bits = 8>
AETHER_INLINE IntVec dot_bytes(const IntVec& sum, const IntVec& w, const IntVec& x) {
  return {_mm256_dpbusd_avx_epi32(sum.low, w.low, x.low), _mm256_dpbusd_avx_epi32(sum.high, w.high, x.high)};
}

}  // namespace aether::cpu::AETHER_ISA
