// Scales and offsets in two levels (quantized_layout.h), as a kernel reads them: once for a super-block.
#pragma once

#include "kernels/gemm.h"
#include "kernels/quantized_layout.h"

namespace aether::cpu::AETHER_ISA {

// A field of each of sixteen columns, out of a super-block's words.
template <int Field>
AETHER_INLINE Vec level_field(const char* words) {
  if constexpr (Field < 3 * kFieldsPerWord) {
    constexpr uint32_t mask = (1u << kFieldBits) - 1u;
    return load_fields(words + Field / kFieldsPerWord * kStepBytes, Field % kFieldsPerWord * kFieldBits, mask);
  } else {
    constexpr int shift = kFieldsPerWord * kFieldBits;
    const Vec low = load_fields(words, shift, 3u), middle = load_fields(words + kStepBytes, shift, 3u);
    return fma(load_fields(words + 2 * kStepBytes, shift, 3u), set1(16.0f), fma(middle, set1(4.0f), low));
  }
}

// The scales and offsets of the super-block that a panel is at: products of 17 bits, exact in float32.
template <bool HasLevels>
struct LevelLines {
  Vec scales[kSuperUnits], offsets[kSuperUnits];

  // Reads those at `side`; returns where the codes begin.
  AETHER_INLINE const char* unpack(const char* side) {
    const Vec scale = load(reinterpret_cast<const Float16*>(side));
    const Vec offset = load(reinterpret_cast<const Float16*>(side + kScaleBytes));
    unpack_unit<0>(side + kScaleBytes + kOffsetBytes, scale, offset);
    return side + kLevelBytes;
  }

 private:
  template <int Unit>
  AETHER_INLINE void unpack_unit(const char* words, const Vec& scale, const Vec& offset) {
    scales[Unit] = level_field<2 * Unit>(words) * scale;
    offsets[Unit] = level_field<2 * Unit + 1>(words) * offset;
    if constexpr (Unit + 1 < kSuperUnits) unpack_unit<Unit + 1>(words, scale, offset);
  }
};
template <>
struct LevelLines<false> {};

}  // namespace aether::cpu::AETHER_ISA
