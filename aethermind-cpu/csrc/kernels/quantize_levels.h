// Scales and offsets of a super-block in two levels, sixteen rows at once: what aethermind.ops.super_blocks defines, bit
// for bit, under the same conditions as quantize.h.
#pragma once

#include "kernels/quantize.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr float kMostUnits = 63.0f;
inline constexpr int kScaleSteps[] = {0, -1, 1}, kOffsetSteps[] = {0, -1, 1, -2, 2};

struct SuperBlock {
  uint16_t units[2][kPanelColumns] = {};  // of scales, of offsets
  uint8_t fields[2 * kSuperUnits][kPanelColumns] = {};
  QuantizedBlock lines[kSuperUnits] = {};  // what fields times units are
};

// The halves of which 63 reach the largest.
inline void units_of(const Floats& largest, uint16_t* units) {
  AETHER_FOR_LANES {
    const uint16_t nearest = to_half(largest.v[c] / kMostUnits);
    units[c] = static_cast<uint16_t>(nearest + (kMostUnits * from_half(nearest) < largest.v[c] ? 1 : 0));
  }
}

inline float whole_units(float value) {
  const float whole = __builtin_rintf(value), above = whole < 0.0f ? 0.0f : whole;
  return above > kMostUnits ? kMostUnits : above;
}

// The sums of squared errors on a line.
inline void line_errors(const Floats* x, int64_t length, const Floats& scales, const Floats& offsets, double* errors) {
  const Floats inverse = inverses(scales);
  AETHER_FOR_LANES errors[c] = 0.0;
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float code = code_of(x[k].v[c] - offsets.v[c], inverse.v[c], 0.0f, 0.0f, 15.0f);
      const double error = x[k].v[c] - (scales.v[c] * code + offsets.v[c]);
      errors[c] += error * error;
    }
  }
}

// The best pair of whole units near where a unit's line starts.
inline void choose_pair(const Floats* x, int64_t length, const Floats (&wide_units)[2], const Floats (&started)[2],
                        uint8_t (*fields)[kPanelColumns], QuantizedBlock& line) {
  double least[kPanelColumns], errors[kPanelColumns];
  for (double& each : least) each = static_cast<double>(INFINITY);
  for (int scale_step : kScaleSteps) {
    for (int offset_step : kOffsetSteps) {
      Floats tried[2], scales, offsets;
      AETHER_FOR_LANES {
        tried[0].v[c] = whole_units(started[0].v[c] + static_cast<float>(scale_step));
        tried[1].v[c] = whole_units(started[1].v[c] + static_cast<float>(offset_step));
        scales.v[c] = tried[0].v[c] * wide_units[0].v[c];
        offsets.v[c] = tried[1].v[c] * wide_units[1].v[c];
      }
      line_errors(x, length, scales, offsets, errors);
      for (int c = 0; c < kPanelColumns; ++c) {
        if (!(errors[c] < least[c])) continue;
        least[c] = errors[c];
        fields[0][c] = static_cast<uint8_t>(tried[0].v[c]);
        fields[1][c] = static_cast<uint8_t>(tried[1].v[c]);
        line.wide.v[c] = scales.v[c];
        line.wide_offsets.v[c] = offsets.v[c];
      }
    }
  }
}

// Of up to a super-block of 4-bit values.
inline SuperBlock quantize_in_two_levels(const Floats* x, int64_t length) {
  SuperBlock result;
  Floats scales[kSuperUnits], offsets[kSuperUnits], largest[kSuperUnits], lowest = {};
  const int64_t count = (length + kUnitK - 1) / kUnitK;
  const auto length_of = [&](int64_t unit) { return unit + 1 < count ? kUnitK : length - unit * kUnitK; };
  for (int64_t unit = 0; unit < count; ++unit) {
    const Floats* of_unit = x + unit * kUnitK;
    const QuantizedBlock line = quantize_with_offsets(of_unit, length_of(unit), 4);
    scales[unit] = line.wide;
    offsets[unit] = line.wide_offsets;
    largest[unit] = of_unit[0];
    for (int64_t k = 1; k < length_of(unit); ++k) {
      AETHER_FOR_LANES {
        const float value = of_unit[k].v[c];
        largest[unit].v[c] = value > largest[unit].v[c] ? value : largest[unit].v[c];
      }
    }
    AETHER_FOR_LANES lowest.v[c] = offsets[unit].v[c] < lowest.v[c] ? offsets[unit].v[c] : lowest.v[c];
  }
  Floats reach[2] = {};
  for (int64_t unit = 0; unit < count; ++unit) {
    AETHER_FOR_LANES {
      const bool is_other = lowest.v[c] < 0.0f && offsets[unit].v[c] > 0.0f;
      scales[unit].v[c] = is_other ? largest[unit].v[c] / 15.0f : scales[unit].v[c];
      offsets[unit].v[c] = is_other ? 0.0f : offsets[unit].v[c];
      const float far = __builtin_fabsf(offsets[unit].v[c]);
      reach[0].v[c] = scales[unit].v[c] > reach[0].v[c] ? scales[unit].v[c] : reach[0].v[c];
      reach[1].v[c] = far > reach[1].v[c] ? far : reach[1].v[c];
    }
  }
  Floats wide[2];
  for (int i = 0; i < 2; ++i) units_of(reach[i], result.units[i]);
  AETHER_FOR_LANES {
    result.units[1][c] = static_cast<uint16_t>(result.units[1][c] | (lowest.v[c] < 0.0f ? 0x8000u : 0u));
    wide[0].v[c] = from_half(result.units[0][c]);
    wide[1].v[c] = from_half(result.units[1][c]);
  }
  const Floats inverse[2] = {inverses(wide[0]), inverses(wide[1])};
  for (int64_t unit = 0; unit < count; ++unit) {
    Floats started[2];
    AETHER_FOR_LANES {
      started[0].v[c] = whole_units(scales[unit].v[c] * inverse[0].v[c]);
      started[1].v[c] = whole_units(offsets[unit].v[c] * inverse[1].v[c]);
    }
    choose_pair(x + unit * kUnitK, length_of(unit), wide, started, result.fields + 2 * unit, result.lines[unit]);
  }
  return result;
}

}  // namespace aether::cpu::AETHER_ISA
