// What the kernels of quantised weights need beside floats where bytes are multiplied four at a time. Included by the
// headers of such instruction sets, which come in two layers: <family>_bytes.h, and what the instructions that multiply
// differ in:
//
//   kByteTileRows     rows of one panel, the kernels' register blocking
//   dot_bytes<Bits>   sum + Σ (w − kCodeOffset<Bits>) x over the four bytes of every word: w unsigned, x signed and not
//                     −128. Exact. Where an instruction wants signed weights too, kCodeOffset<8> is 128.
//   kSumsUnitsInHalves<Bits>   whether that leaves two sums in the halves of a word, for add_halves to join at the end
//                     of a unit, from whose beginning they are zero
//   kMultipliesFieldsInPlace   whether w may be any unsigned byte, so that codes of fewer bits need not be shifted
//   larger_magnitude  the larger of a magnitude and |x| in every lane, NaN where either is
//   round_to_bytes    thirty-two values as signed bytes, and their sum
#pragma once

#include <cstdint>

#define AETHER_HAS_BYTE_DOT 1

namespace aether::cpu::AETHER_ISA {

// Values as signed bytes: x ≈ scale · code with scale = largest |x| / 127. Where a value is not finite, neither is the
// scale.
inline constexpr float kLeastMagnitude = 0x1p-100f;  // what is below is too small for a reciprocal

inline float steps_per_one(float magnitude) { return magnitude < kLeastMagnitude ? 0.0f : 127.0f / magnitude; }
inline float byte_scale(float magnitude) { return magnitude < kLeastMagnitude ? 0.0f : magnitude * (1.0f / 127.0f); }

}  // namespace aether::cpu::AETHER_ISA
