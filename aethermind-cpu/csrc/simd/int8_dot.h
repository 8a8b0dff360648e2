// Integer arithmetic for quantised weights, on instruction sets with products of bytes. Included by their headers,
// which come in two layers: <family>_bytes.h, and a header for each kind of multiplication instruction. Such a header
// defines
//
//   kInt8TileRows                register tile: rows of one panel
//   dot_bytes<Bits>              sum + Σ (w − kCodeOffset<Bits>) x over the four bytes of every word, exact.
//                                w is unsigned, x signed and not −128. kCodeOffset<8> is 128 where the instruction
//                                takes signed weights.
//   kAccumulatesInInt16<Bits>    whether dot_bytes leaves two int16 sums in every word, which start from zero in each
//                                k-group and which add_int16_pairs joins at its end
//   kMultipliesCodesInPlace      whether w may be any unsigned byte, so that narrow codes need no shift (mask_codes)
//   larger_magnitude             max(m, |x|) in every lane, NaN where either is
//   round_to_bytes               rounds 32 values to int8, and returns their sum
#pragma once

#include <cstdint>

#define AETHER_HAS_INT8_DOT 1

namespace aether::cpu::AETHER_ISA {

// Symmetric int8 quantisation: x ≈ scale · code with scale = max |x| / 127. Where a value is not finite, neither is the
// scale.
inline constexpr float kMinMagnitude = 0x1p-100f;  // smaller magnitudes have no finite reciprocal and become zero

inline float inverse_byte_scale(float magnitude) { return magnitude < kMinMagnitude ? 0.0f : 127.0f / magnitude; }
inline float byte_scale(float magnitude) { return magnitude < kMinMagnitude ? 0.0f : magnitude * (1.0f / 127.0f); }

}  // namespace aether::cpu::AETHER_ISA
