// Quantisation of a super-block, sixteen rows at once: 4-bit codes whose scales and offsets are 6-bit multiples of the
// super-block's. Equal to aethermind.ops.super_blocks bit for bit, as long as the compiler neither contracts nor
// reassociates (see quantize.h).
#pragma once

#include "kernels/quantize.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr float kMaxSubScale = 63.0f;
inline constexpr int kScaleCandidates[] = {0, -1, 1}, kOffsetCandidates[] = {0, -1, 1, -2, 2};

struct SuperBlock {
  uint16_t super_scales[2][kPanelColumns] = {};  // of scales, of offsets
  uint8_t sub_scales[2 * kSuperBlockGroups][kPanelColumns] = {};
  QuantizedBlock groups[kSuperBlockGroups] = {};  // dequantised scales and offsets
};

// The smallest float16 super-scales s for which 63 * s >= `largest`.
inline void super_scales_of(const LaneFloats& largest, uint16_t* super_scales) {
  AETHER_FOR_LANES {
    const uint16_t nearest = to_half(largest.v[c] / kMaxSubScale);
    super_scales[c] = static_cast<uint16_t>(nearest + (kMaxSubScale * from_half(nearest) < largest.v[c] ? 1 : 0));
  }
}

inline float round_sub_scale(float value) {
  const float whole = __builtin_rintf(value), above = whole < 0.0f ? 0.0f : whole;
  return above > kMaxSubScale ? kMaxSubScale : above;
}

// Sums of squared errors of affine quantisation to 4 bits.
inline void affine_errors(const LaneFloats* x, int64_t length, const LaneFloats& scales, const LaneFloats& offsets,
                          double* errors) {
  const LaneFloats inverse = inverses(scales);
  AETHER_FOR_LANES errors[c] = 0.0;
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float code = code_of(x[k].v[c] - offsets.v[c], inverse.v[c], 0.0f, 0.0f, 15.0f);
      const double error = x[k].v[c] - (scales.v[c] * code + offsets.v[c]);
      errors[c] += error * error;
    }
  }
}

// Searches the pair of sub-scales with the least squared error near `start`; the first of equals.
inline void choose_sub_scales(const LaneFloats* x, int64_t length, const LaneFloats (&super_scales)[2],
                              const LaneFloats (&start)[2], uint8_t (*sub_scales)[kPanelColumns],
                              QuantizedBlock& group) {
  double best_errors[kPanelColumns], errors[kPanelColumns];
  for (double& error : best_errors) error = static_cast<double>(INFINITY);
  for (int scale_change : kScaleCandidates) {
    for (int offset_change : kOffsetCandidates) {
      LaneFloats candidates[2], scales, offsets;
      AETHER_FOR_LANES {
        candidates[0].v[c] = round_sub_scale(start[0].v[c] + static_cast<float>(scale_change));
        candidates[1].v[c] = round_sub_scale(start[1].v[c] + static_cast<float>(offset_change));
        scales.v[c] = candidates[0].v[c] * super_scales[0].v[c];
        offsets.v[c] = candidates[1].v[c] * super_scales[1].v[c];
      }
      affine_errors(x, length, scales, offsets, errors);
      for (int c = 0; c < kPanelColumns; ++c) {
        if (!(errors[c] < best_errors[c])) continue;
        best_errors[c] = errors[c];
        sub_scales[0][c] = static_cast<uint8_t>(candidates[0].v[c]);
        sub_scales[1][c] = static_cast<uint8_t>(candidates[1].v[c]);
        group.scales_f32.v[c] = scales.v[c];
        group.offsets_f32.v[c] = offsets.v[c];
      }
    }
  }
}

// Quantises up to a super-block of values to 4 bits.
inline SuperBlock quantize_super_block(const LaneFloats* x, int64_t length) {
  SuperBlock result;
  LaneFloats scales[kSuperBlockGroups], offsets[kSuperBlockGroups], largest[kSuperBlockGroups], lowest = {};
  const int64_t count = (length + kGroupK - 1) / kGroupK;
  const auto length_of = [&](int64_t index) { return index + 1 < count ? kGroupK : length - index * kGroupK; };
  for (int64_t index = 0; index < count; ++index) {
    const LaneFloats* values = x + index * kGroupK;
    const QuantizedBlock group = quantize_affine(values, length_of(index), 4);
    scales[index] = group.scales_f32;
    offsets[index] = group.offsets_f32;
    largest[index] = values[0];
    for (int64_t k = 1; k < length_of(index); ++k) {
      AETHER_FOR_LANES {
        const float value = values[k].v[c];
        largest[index].v[c] = value > largest[index].v[c] ? value : largest[index].v[c];
      }
    }
    AETHER_FOR_LANES lowest.v[c] = offsets[index].v[c] < lowest.v[c] ? offsets[index].v[c] : lowest.v[c];
  }
  LaneFloats reach[2] = {};
  for (int64_t index = 0; index < count; ++index) {
    AETHER_FOR_LANES {
      // The offsets of a super-block have one sign. A group with the other one gets offset 0 and a larger scale.
      const bool has_opposite_sign = lowest.v[c] < 0.0f && offsets[index].v[c] > 0.0f;
      scales[index].v[c] = has_opposite_sign ? largest[index].v[c] / 15.0f : scales[index].v[c];
      offsets[index].v[c] = has_opposite_sign ? 0.0f : offsets[index].v[c];
      const float far = __builtin_fabsf(offsets[index].v[c]);
      reach[0].v[c] = scales[index].v[c] > reach[0].v[c] ? scales[index].v[c] : reach[0].v[c];
      reach[1].v[c] = far > reach[1].v[c] ? far : reach[1].v[c];
    }
  }
  LaneFloats scales_f32[2];
  for (int i = 0; i < 2; ++i) super_scales_of(reach[i], result.super_scales[i]);
  AETHER_FOR_LANES {
    result.super_scales[1][c] = static_cast<uint16_t>(result.super_scales[1][c] | (lowest.v[c] < 0.0f ? 0x8000u : 0u));
    scales_f32[0].v[c] = from_half(result.super_scales[0][c]);
    scales_f32[1].v[c] = from_half(result.super_scales[1][c]);
  }
  const LaneFloats inverse[2] = {inverses(scales_f32[0]), inverses(scales_f32[1])};
  for (int64_t index = 0; index < count; ++index) {
    LaneFloats start[2];
    AETHER_FOR_LANES {
      start[0].v[c] = round_sub_scale(scales[index].v[c] * inverse[0].v[c]);
      start[1].v[c] = round_sub_scale(offsets[index].v[c] * inverse[1].v[c]);
    }
    choose_sub_scales(x + index * kGroupK, length_of(index), scales_f32, start, result.sub_scales + 2 * index,
                      result.groups[index]);
  }
  return result;
}

}  // namespace aether::cpu::AETHER_ISA
