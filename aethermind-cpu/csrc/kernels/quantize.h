// Codes, scales and zero points of a block, sixteen rows of a weight at once: what aethermind.ops.quantization defines,
// bit for bit. Loops over lanes become vector instructions; each lane does the definition's operations in their order,
// so nothing here may be contracted or reassociated (CMakeLists.txt turns contraction off).
#pragma once

#include <cmath>

#include "kernels/pack.h"
#include "kernels/quantized_layout.h"

#define AETHER_FOR_LANES _Pragma("GCC ivdep") for (int c = 0; c < kPanelColumns; ++c)

namespace aether::cpu::AETHER_ISA {

// Numbers of steps that a block's extent is divided by, in the order that they are tried.
struct Steps {
  int count;
  float values[8];
};
inline constexpr Steps kSignedSteps4 = {4, {8.0f, 7.25f, 8.75f, 10.0f}};
inline constexpr Steps kSteps8 = {2, {255.0f, 254.0f}};
inline constexpr Steps kSteps4 = {6, {15.0f, 14.0f, 15.75f, 16.5f, 17.5f, 18.75f}};
inline constexpr Steps kOffsetSteps8 = {1, {255.0f}};
inline constexpr Steps kOffsetSteps4 = {4, {15.0f, 15.75f, 16.5f, 17.5f}};
inline constexpr int kNumFits = 2;
inline constexpr Steps kSteps2 = {8, {3.0f, 2.0f, 3.25f, 3.5f, 4.0f, 4.5f, 5.0f, 6.0f}};

// A lane's value each.
struct Floats {
  float v[kPanelColumns];
};

struct QuantizedBlock {
  uint16_t scales[kPanelColumns], offsets[kPanelColumns];
  Floats wide, wide_offsets, zeros;  // wide: as float32
};

inline bool is_unsigned(const QuantizedLayout& layout) { return layout.has_zero_point || layout.has_offset; }

inline uint16_t to_half(float value) {
  const uint32_t u = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5f) - (126u << 23);
  const uint32_t number = magnitude < (113u << 23) ? subnormal : normal < 0x7c00u ? normal : 0x7c00u;
  return static_cast<uint16_t>(number | ((u >> 16) & 0x8000u));
}

// Of a finite number.
inline float from_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t bits = magnitude << 13;
  const float subnormal = __builtin_bit_cast(float, bits + (113u << 23)) - __builtin_bit_cast(float, 113u << 23);
  const float normal = __builtin_bit_cast(float, bits + (112u << 23));
  const float value = magnitude < 0x400u ? subnormal : normal;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | static_cast<uint32_t>(half & 0x8000u) << 16);
}

inline Floats inverses(const Floats& wide) {
  Floats result;
  AETHER_FOR_LANES result.v[c] = wide.v[c] != 0.0f ? 1.0f / wide.v[c] : 0.0f;
  return result;
}

inline void set_scales(QuantizedBlock& block, const Floats& exact) {
  AETHER_FOR_LANES block.scales[c] = to_half(exact.v[c]);
  AETHER_FOR_LANES block.wide.v[c] = from_half(block.scales[c]);
}

inline float code_of(float x, float inverse, float zero, float low, float high) {
  const float code = __builtin_rintf(x * inverse) + zero;
  const float above = code < low ? low : code;
  return above > high ? high : above;
}

// The sums of squared errors that a candidate leaves.
inline void errors_of(const Floats* x, int64_t length, const QuantizedBlock& block, float low, float high,
                      double* errors) {
  const Floats inverse = inverses(block.wide);
  AETHER_FOR_LANES errors[c] = 0.0;
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float code = code_of(x[k].v[c], inverse.v[c], block.zeros.v[c], low, high);
      const float value = block.wide.v[c] * (code - block.zeros.v[c]);
      const double error = x[k].v[c] - value;
      errors[c] += error * error;
    }
  }
}

// `candidate(steps)` for all numbers of steps; of equals the first.
template <class CandidateFn>
inline QuantizedBlock choose(const Floats* x, int64_t length, const Steps& steps, float low, float high,
                             CandidateFn candidate) {
  QuantizedBlock best = candidate(steps.values[0]);
  double least[kPanelColumns], errors[kPanelColumns];
  errors_of(x, length, best, low, high, least);
  for (int i = 1; i < steps.count; ++i) {
    const QuantizedBlock block = candidate(steps.values[i]);
    errors_of(x, length, block, low, high, errors);
    for (int c = 0; c < kPanelColumns; ++c) {
      if (!(errors[c] < least[c])) continue;
      least[c] = errors[c];
      best.scales[c] = block.scales[c];
      best.wide.v[c] = block.wide.v[c];
      best.zeros.v[c] = block.zeros.v[c];
    }
  }
  return best;
}

// Of `start(steps)` for all numbers of steps, and of what each is fitted to, the one that leaves least: `sums_of` a
// block says what it leaves and what `fit` needs; of equals the first.
template <class StartFn, class SumsFn, class FitFn>
inline QuantizedBlock choose_fitted(const Steps& steps, StartFn start, SumsFn sums_of, FitFn fit) {
  QuantizedBlock best = {};
  double least[kPanelColumns];
  for (double& each : least) each = static_cast<double>(INFINITY);
  for (int i = 0; i < steps.count; ++i) {
    QuantizedBlock block = start(steps.values[i]);
    for (int turn = 0;; ++turn) {
      const auto sums = sums_of(block);
      for (int c = 0; c < kPanelColumns; ++c) {
        if (!(sums.errors[c] < least[c])) continue;
        least[c] = sums.errors[c];
        best.scales[c] = block.scales[c];
        best.offsets[c] = block.offsets[c];
        best.wide.v[c] = block.wide.v[c];
        best.wide_offsets.v[c] = block.wide_offsets.v[c];
      }
      if (turn == kNumFits) break;
      block = fit(sums);
    }
  }
  return best;
}

inline Floats largest_magnitudes(const Floats* x, int64_t length) {
  Floats largest = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float magnitude = __builtin_fabsf(x[k].v[c]);
      largest.v[c] = magnitude > largest.v[c] ? magnitude : largest.v[c];
    }
  }
  return largest;
}

// 8 bits: 127 steps. A tiny scale, of few digits, is rounded up where it would not reach the largest magnitude.
inline QuantizedBlock quantize_finely(const Floats* x, int64_t length) {
  const Floats largest = largest_magnitudes(x, length);
  QuantizedBlock block = {};
  Floats exact;
  AETHER_FOR_LANES exact.v[c] = largest.v[c] / 127.0f;
  set_scales(block, exact);
  AETHER_FOR_LANES {
    block.scales[c] = static_cast<uint16_t>(block.scales[c] + (127.5f * block.wide.v[c] < largest.v[c] ? 1 : 0));
    block.wide.v[c] = from_half(block.scales[c]);
  }
  return block;
}

// What a candidate leaves, and what least squares need of the codes that it leads to, by weights.
struct ScaleSums {
  double errors[kPanelColumns], products[kPanelColumns], squares[kPanelColumns];
};

inline ScaleSums scale_sums_of(const Floats* x, int64_t length, const QuantizedBlock& block, const Floats& typical) {
  const Floats inverse = inverses(block.wide);
  ScaleSums sums = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float value = x[k].v[c];
      const float code = code_of(value, inverse.v[c], 0.0f, -8.0f, 7.0f);
      const double weight = typical.v[c] + __builtin_fabsf(value), wide = code, weighted = weight * wide;
      const double error = value - block.wide.v[c] * code;
      sums.errors[c] += weight * (error * error);
      sums.products[c] += weighted * static_cast<double>(value);
      sums.squares[c] += weighted * wide;
    }
  }
  return sums;
}

// The scale of least squares for codes; 0 where all are.
inline QuantizedBlock fit_scale(const ScaleSums& sums) {
  QuantizedBlock block = {};
  Floats exact;
  AETHER_FOR_LANES {
    const double slope = sums.squares[c] != 0.0 ? sums.products[c] / sums.squares[c] : 0.0;
    exact.v[c] = static_cast<float>(slope);
  }
  set_scales(block, exact);
  return block;
}

// 4 bits: the first of the largest magnitudes gets a negative code.
inline QuantizedBlock quantize_coarsely(const Floats* x, int64_t length) {
  Floats peak = x[0], largest, typical;
  double squares[kPanelColumns] = {};
  AETHER_FOR_LANES largest.v[c] = __builtin_fabsf(peak.v[c]);
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float magnitude = __builtin_fabsf(x[k].v[c]);
      peak.v[c] = magnitude > largest.v[c] ? x[k].v[c] : peak.v[c];
      largest.v[c] = magnitude > largest.v[c] ? magnitude : largest.v[c];
      squares[c] += static_cast<double>(x[k].v[c]) * static_cast<double>(x[k].v[c]);
    }
  }
  AETHER_FOR_LANES typical.v[c] = static_cast<float>(__builtin_sqrt(squares[c] / static_cast<double>(length)));
  const auto start = [&](float steps) {
    QuantizedBlock block = {};
    Floats exact;
    AETHER_FOR_LANES exact.v[c] = peak.v[c] / -steps;
    set_scales(block, exact);
    return block;
  };
  return choose_fitted(
      kSignedSteps4, start, [&](const QuantizedBlock& block) { return scale_sums_of(x, length, block, typical); },
      fit_scale);
}

inline QuantizedBlock quantize_with_zero_points(const Floats* x, int64_t length, int bits) {
  Floats low = {}, high = {}, extent;
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      low.v[c] = x[k].v[c] < low.v[c] ? x[k].v[c] : low.v[c];
      high.v[c] = x[k].v[c] > high.v[c] ? x[k].v[c] : high.v[c];
    }
  }
  AETHER_FOR_LANES extent.v[c] = high.v[c] - low.v[c];
  const float most = static_cast<float>((1 << bits) - 1);
  const Steps& tried = bits == 8 ? kSteps8 : bits == 4 ? kSteps4 : kSteps2;
  return choose(x, length, tried, 0.0f, most, [&](float steps) {
    QuantizedBlock block = {};
    Floats exact;
    AETHER_FOR_LANES exact.v[c] = extent.v[c] / steps;
    set_scales(block, exact);
    AETHER_FOR_LANES {
      const float share = -low.v[c] * (steps < most ? steps : most);
      block.zeros.v[c] = block.wide.v[c] != 0.0f ? __builtin_rintf(share / extent.v[c]) : 0.0f;
    }
    return block;
  });
}

// Scales and offsets rounded to halves, what is beyond their largest to that, and negative zeros to positive ones.
inline QuantizedBlock line_of(const Floats& scales, const Floats& offsets) {
  QuantizedBlock block = {};
  const auto bounded = [](float value) {
    return value < -65504.0f ? -65504.0f : value > 65504.0f ? 65504.0f : value + 0.0f;
  };
  AETHER_FOR_LANES block.scales[c] = to_half(bounded(scales.v[c]));
  AETHER_FOR_LANES block.wide.v[c] = from_half(block.scales[c]);
  AETHER_FOR_LANES block.offsets[c] = to_half(bounded(offsets.v[c]));
  AETHER_FOR_LANES block.wide_offsets.v[c] = from_half(block.offsets[c]);
  return block;
}

// What a candidate leaves, and what least squares need of the codes that it leads to.
struct LineSums {
  double errors[kPanelColumns], codes[kPanelColumns], squares[kPanelColumns], products[kPanelColumns];
};

inline LineSums line_sums_of(const Floats* x, int64_t length, const QuantizedBlock& block, float most) {
  const Floats inverse = inverses(block.wide);
  LineSums sums = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float value = x[k].v[c], offset = block.wide_offsets.v[c];
      const float code = code_of(value - offset, inverse.v[c], 0.0f, 0.0f, most);
      const double wide = code;
      const double error = value - (block.wide.v[c] * code + offset);
      sums.errors[c] += error * error;
      sums.codes[c] += wide;
      sums.squares[c] += wide * wide;
      sums.products[c] += static_cast<double>(value) * wide;
    }
  }
  return sums;
}

// The line of least squares through codes; level where all are the same.
inline QuantizedBlock fit_line(const LineSums& sums, const double* totals, int64_t length) {
  const double count = static_cast<double>(length);
  Floats scales, offsets;
  AETHER_FOR_LANES {
    const double determinant = count * sums.squares[c] - sums.codes[c] * sums.codes[c];
    const double numerator = count * sums.products[c] - sums.codes[c] * totals[c];
    const double slope = determinant != 0.0 ? numerator / determinant : 0.0;
    scales.v[c] = static_cast<float>(slope);
    offsets.v[c] = static_cast<float>((totals[c] - slope * sums.codes[c]) / count);
  }
  return line_of(scales, offsets);
}

// Scales and offsets: the range in some steps about its middle, each followed by lines through its codes.
inline QuantizedBlock quantize_with_offsets(const Floats* x, int64_t length, int bits) {
  Floats low = x[0], high = x[0];
  double totals[kPanelColumns] = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      low.v[c] = x[k].v[c] < low.v[c] ? x[k].v[c] : low.v[c];
      high.v[c] = x[k].v[c] > high.v[c] ? x[k].v[c] : high.v[c];
      totals[c] += x[k].v[c];
    }
  }
  const float most = static_cast<float>((1 << bits) - 1);
  const auto start = [&](float steps) {
    Floats scales, offsets;
    AETHER_FOR_LANES {
      scales.v[c] = (high.v[c] - low.v[c]) / steps;
      offsets.v[c] = 0.5f * low.v[c] + 0.5f * high.v[c] - 0.5f * most * from_half(to_half(scales.v[c]));
    }
    return line_of(scales, offsets);
  };
  return choose_fitted(
      bits == 8 ? kOffsetSteps8 : kOffsetSteps4, start,
      [&](const QuantizedBlock& block) { return line_sums_of(x, length, block, most); },
      [&](const LineSums& sums) { return fit_line(sums, totals, length); });
}

// 1 bit: the mean magnitude.
inline QuantizedBlock quantize_to_signs(const Floats* x, int64_t length) {
  double sums[kPanelColumns] = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES sums[c] += __builtin_fabsf(x[k].v[c]);
  }
  QuantizedBlock block = {};
  Floats exact;
  AETHER_FOR_LANES exact.v[c] = static_cast<float>(sums[c] / static_cast<double>(length));
  set_scales(block, exact);
  return block;
}

inline QuantizedBlock quantize_block(const QuantizedLayout& layout, const Floats* x, int64_t length) {
  if (layout.has_zero_point) return quantize_with_zero_points(x, length, layout.bits);
  if (layout.has_offset) return quantize_with_offsets(x, length, layout.bits);
  if (layout.bits == 8) return quantize_finely(x, length);
  return layout.bits == 4 ? quantize_coarsely(x, length) : quantize_to_signs(x, length);
}

// The codes of one value of each lane, unsigned as they are stored.
inline void codes_of(const QuantizedLayout& layout, const QuantizedBlock& block, const Floats& inverse, const Floats& x,
                     uint8_t* codes) {
  if (layout.bits == 1) {
    AETHER_FOR_LANES codes[c] = x.v[c] < 0.0f && block.wide.v[c] != 0.0f ? 0 : 1;
    return;
  }
  const float offset = is_unsigned(layout) ? 0.0f : static_cast<float>(1 << (layout.bits - 1));
  const float low = is_unsigned(layout) ? 0.0f : layout.bits == 8 ? -127.0f : -offset;
  const float high = is_unsigned(layout) ? static_cast<float>((1 << layout.bits) - 1) : offset - 1.0f;
  AETHER_FOR_LANES {
    const float shifted = x.v[c] - block.wide_offsets.v[c];
    const float code = code_of(shifted, inverse.v[c], block.zeros.v[c], low, high);
    codes[c] = static_cast<uint8_t>(static_cast<int32_t>(code + offset));
  }
}

}  // namespace aether::cpu::AETHER_ISA
