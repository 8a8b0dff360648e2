// Quantisation of a block to codes, scales and zero points, sixteen rows of a weight at once. Equal to
// aethermind.ops.quantization bit for bit. Loops over lanes become vector instructions; each lane does the definition's
// operations in their order, so nothing here may be contracted or reassociated (CMakeLists.txt turns contraction off).
#pragma once

#include <cmath>

#include "kernels/pack.h"
#include "kernels/quantized_layout.h"

#define AETHER_FOR_LANES _Pragma("GCC ivdep") for (int c = 0; c < kPanelColumns; ++c)

namespace aether::cpu::AETHER_ISA {

// Candidate ranges: numbers of quantisation steps across a block's extent, in the order in which they are tried.
struct CandidateRanges {
  int count;
  float values[8];
};
inline constexpr CandidateRanges kSignedRanges4 = {4, {8.0f, 7.25f, 8.75f, 10.0f}};
inline constexpr CandidateRanges kZeroPointRanges8 = {2, {255.0f, 254.0f}};
inline constexpr CandidateRanges kZeroPointRanges4 = {6, {15.0f, 14.0f, 15.75f, 16.5f, 17.5f, 18.75f}};
inline constexpr CandidateRanges kOffsetRanges8 = {1, {255.0f}};
inline constexpr CandidateRanges kOffsetRanges4 = {4, {15.0f, 15.75f, 16.5f, 17.5f}};
inline constexpr int kNumFits = 2;
inline constexpr CandidateRanges kZeroPointRanges2 = {8, {3.0f, 2.0f, 3.25f, 3.5f, 4.0f, 4.5f, 5.0f, 6.0f}};

// One float for each of sixteen rows.
struct LaneFloats {
  float v[kPanelColumns];
};

struct QuantizedBlock {
  uint16_t scales[kPanelColumns], offsets[kPanelColumns];
  LaneFloats scales_f32, offsets_f32, zeros;  // the float16 values as float32
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

// float16 to float32, of a finite number.
inline float from_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t bits = magnitude << 13;
  const float subnormal = __builtin_bit_cast(float, bits + (113u << 23)) - __builtin_bit_cast(float, 113u << 23);
  const float normal = __builtin_bit_cast(float, bits + (112u << 23));
  const float value = magnitude < 0x400u ? subnormal : normal;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | static_cast<uint32_t>(half & 0x8000u) << 16);
}

inline LaneFloats inverses(const LaneFloats& scales) {
  LaneFloats result;
  AETHER_FOR_LANES result.v[c] = scales.v[c] != 0.0f ? 1.0f / scales.v[c] : 0.0f;
  return result;
}

inline void set_scales(QuantizedBlock& block, const LaneFloats& exact) {
  AETHER_FOR_LANES block.scales[c] = to_half(exact.v[c]);
  AETHER_FOR_LANES block.scales_f32.v[c] = from_half(block.scales[c]);
}

inline float code_of(float x, float inverse, float zero, float low, float high) {
  const float code = __builtin_rintf(x * inverse) + zero;
  const float above = code < low ? low : code;
  return above > high ? high : above;
}

// Sums of squared errors of a candidate.
inline void errors_of(const LaneFloats* x, int64_t length, const QuantizedBlock& block, float low, float high,
                      double* errors) {
  const LaneFloats inverse = inverses(block.scales_f32);
  AETHER_FOR_LANES errors[c] = 0.0;
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float code = code_of(x[k].v[c], inverse.v[c], block.zeros.v[c], low, high);
      const float value = block.scales_f32.v[c] * (code - block.zeros.v[c]);
      const double error = x[k].v[c] - value;
      errors[c] += error * error;
    }
  }
}

// The block of `candidate(range)` with the least squared error, over all candidate ranges; the first of equals.
template <class CandidateFn>
inline QuantizedBlock choose(const LaneFloats* x, int64_t length, const CandidateRanges& ranges, float low, float high,
                             CandidateFn candidate) {
  QuantizedBlock best = candidate(ranges.values[0]);
  double best_errors[kPanelColumns], errors[kPanelColumns];
  errors_of(x, length, best, low, high, best_errors);
  for (int i = 1; i < ranges.count; ++i) {
    const QuantizedBlock block = candidate(ranges.values[i]);
    errors_of(x, length, block, low, high, errors);
    for (int c = 0; c < kPanelColumns; ++c) {
      if (!(errors[c] < best_errors[c])) continue;
      best_errors[c] = errors[c];
      best.scales[c] = block.scales[c];
      best.scales_f32.v[c] = block.scales_f32.v[c];
      best.zeros.v[c] = block.zeros.v[c];
    }
  }
  return best;
}

// Starts from `start(range)` for all candidate ranges and refits each kNumFits times; returns the block with the least
// error, the first of equals. `sums_of(block)` has the errors and the sums that `fit` needs.
template <class StartFn, class SumsFn, class FitFn>
inline QuantizedBlock choose_fitted(const CandidateRanges& ranges, StartFn start, SumsFn sums_of, FitFn fit) {
  QuantizedBlock best = {};
  double best_errors[kPanelColumns];
  for (double& error : best_errors) error = static_cast<double>(INFINITY);
  for (int i = 0; i < ranges.count; ++i) {
    QuantizedBlock block = start(ranges.values[i]);
    for (int iteration = 0;; ++iteration) {
      const auto sums = sums_of(block);
      for (int c = 0; c < kPanelColumns; ++c) {
        if (!(sums.errors[c] < best_errors[c])) continue;
        best_errors[c] = sums.errors[c];
        best.scales[c] = block.scales[c];
        best.offsets[c] = block.offsets[c];
        best.scales_f32.v[c] = block.scales_f32.v[c];
        best.offsets_f32.v[c] = block.offsets_f32.v[c];
      }
      if (iteration == kNumFits) break;
      block = fit(sums);
    }
  }
  return best;
}

inline LaneFloats largest_magnitudes(const LaneFloats* x, int64_t length) {
  LaneFloats largest = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float magnitude = __builtin_fabsf(x[k].v[c]);
      largest.v[c] = magnitude > largest.v[c] ? magnitude : largest.v[c];
    }
  }
  return largest;
}

// 8 bits, scale = max |x| / 127. A subnormal scale is rounded up where it would not reach the largest magnitude.
inline QuantizedBlock quantize_int8_symmetric(const LaneFloats* x, int64_t length) {
  const LaneFloats largest = largest_magnitudes(x, length);
  QuantizedBlock block = {};
  LaneFloats exact;
  AETHER_FOR_LANES exact.v[c] = largest.v[c] / 127.0f;
  set_scales(block, exact);
  AETHER_FOR_LANES {
    block.scales[c] = static_cast<uint16_t>(block.scales[c] + (127.5f * block.scales_f32.v[c] < largest.v[c] ? 1 : 0));
    block.scales_f32.v[c] = from_half(block.scales[c]);
  }
  return block;
}

// Weighted squared errors of a candidate, and the sums of a weighted least-squares fit of the scale to its codes.
struct ScaleSums {
  double errors[kPanelColumns], products[kPanelColumns], squares[kPanelColumns];
};

inline ScaleSums scale_sums_of(const LaneFloats* x, int64_t length, const QuantizedBlock& block,
                               const LaneFloats& rms) {
  const LaneFloats inverse = inverses(block.scales_f32);
  ScaleSums sums = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float value = x[k].v[c];
      const float code = code_of(value, inverse.v[c], 0.0f, -8.0f, 7.0f);
      const double weight = rms.v[c] + __builtin_fabsf(value), wide = code, weighted = weight * wide;
      const double error = value - block.scales_f32.v[c] * code;
      sums.errors[c] += weight * (error * error);
      sums.products[c] += weighted * static_cast<double>(value);
      sums.squares[c] += weighted * wide;
    }
  }
  return sums;
}

// Least-squares scale; 0 where all codes are 0.
inline QuantizedBlock fit_scale(const ScaleSums& sums) {
  QuantizedBlock block = {};
  LaneFloats exact;
  AETHER_FOR_LANES {
    const double slope = sums.squares[c] != 0.0 ? sums.products[c] / sums.squares[c] : 0.0;
    exact.v[c] = static_cast<float>(slope);
  }
  set_scales(block, exact);
  return block;
}

// 4 bits: the value of largest magnitude (the first of equals) maps to a negative code, of which there is one more.
inline QuantizedBlock quantize_int4_symmetric(const LaneFloats* x, int64_t length) {
  LaneFloats peak = x[0], largest, rms;
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
  AETHER_FOR_LANES rms.v[c] = static_cast<float>(__builtin_sqrt(squares[c] / static_cast<double>(length)));
  const auto start = [&](float range) {
    QuantizedBlock block = {};
    LaneFloats exact;
    AETHER_FOR_LANES exact.v[c] = peak.v[c] / -range;
    set_scales(block, exact);
    return block;
  };
  return choose_fitted(
      kSignedRanges4, start, [&](const QuantizedBlock& block) { return scale_sums_of(x, length, block, rms); },
      fit_scale);
}

inline QuantizedBlock quantize_zero_point(const LaneFloats* x, int64_t length, int bits) {
  LaneFloats low = {}, high = {}, extent;
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      low.v[c] = x[k].v[c] < low.v[c] ? x[k].v[c] : low.v[c];
      high.v[c] = x[k].v[c] > high.v[c] ? x[k].v[c] : high.v[c];
    }
  }
  AETHER_FOR_LANES extent.v[c] = high.v[c] - low.v[c];
  const float max_code = static_cast<float>((1 << bits) - 1);
  const CandidateRanges& ranges = bits == 8 ? kZeroPointRanges8 : bits == 4 ? kZeroPointRanges4 : kZeroPointRanges2;
  return choose(x, length, ranges, 0.0f, max_code, [&](float range) {
    QuantizedBlock block = {};
    LaneFloats exact;
    AETHER_FOR_LANES exact.v[c] = extent.v[c] / range;
    set_scales(block, exact);
    AETHER_FOR_LANES {
      const float scaled = -low.v[c] * (range < max_code ? range : max_code);
      block.zeros.v[c] = block.scales_f32.v[c] != 0.0f ? __builtin_rintf(scaled / extent.v[c]) : 0.0f;
    }
    return block;
  });
}

// A block with these scales and offsets in float16: clamped to the largest, negative zeros made positive.
inline QuantizedBlock affine_of(const LaneFloats& scales, const LaneFloats& offsets) {
  QuantizedBlock block = {};
  const auto bounded = [](float value) {
    return value < -65504.0f ? -65504.0f : value > 65504.0f ? 65504.0f : value + 0.0f;
  };
  AETHER_FOR_LANES block.scales[c] = to_half(bounded(scales.v[c]));
  AETHER_FOR_LANES block.scales_f32.v[c] = from_half(block.scales[c]);
  AETHER_FOR_LANES block.offsets[c] = to_half(bounded(offsets.v[c]));
  AETHER_FOR_LANES block.offsets_f32.v[c] = from_half(block.offsets[c]);
  return block;
}

// Squared errors of a candidate, and the sums of a least-squares fit of scale and offset to its codes.
struct AffineSums {
  double errors[kPanelColumns], codes[kPanelColumns], squares[kPanelColumns], products[kPanelColumns];
};

inline AffineSums affine_sums_of(const LaneFloats* x, int64_t length, const QuantizedBlock& block, float max_code) {
  const LaneFloats inverse = inverses(block.scales_f32);
  AffineSums sums = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      const float value = x[k].v[c], offset = block.offsets_f32.v[c];
      const float code = code_of(value - offset, inverse.v[c], 0.0f, 0.0f, max_code);
      const double wide = code;
      const double error = value - (block.scales_f32.v[c] * code + offset);
      sums.errors[c] += error * error;
      sums.codes[c] += wide;
      sums.squares[c] += wide * wide;
      sums.products[c] += static_cast<double>(value) * wide;
    }
  }
  return sums;
}

// Least-squares scale and offset; a scale of 0 where all codes are the same.
inline QuantizedBlock fit_affine(const AffineSums& sums, const double* totals, int64_t length) {
  const double count = static_cast<double>(length);
  LaneFloats scales, offsets;
  AETHER_FOR_LANES {
    const double determinant = count * sums.squares[c] - sums.codes[c] * sums.codes[c];
    const double numerator = count * sums.products[c] - sums.codes[c] * totals[c];
    const double slope = determinant != 0.0 ? numerator / determinant : 0.0;
    scales.v[c] = static_cast<float>(slope);
    offsets.v[c] = static_cast<float>((totals[c] - slope * sums.codes[c]) / count);
  }
  return affine_of(scales, offsets);
}

// Affine codes: candidate ranges centred on the block's range, each refitted.
inline QuantizedBlock quantize_affine(const LaneFloats* x, int64_t length, int bits) {
  LaneFloats low = x[0], high = x[0];
  double totals[kPanelColumns] = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES {
      low.v[c] = x[k].v[c] < low.v[c] ? x[k].v[c] : low.v[c];
      high.v[c] = x[k].v[c] > high.v[c] ? x[k].v[c] : high.v[c];
      totals[c] += x[k].v[c];
    }
  }
  const float max_code = static_cast<float>((1 << bits) - 1);
  const auto start = [&](float range) {
    LaneFloats scales, offsets;
    AETHER_FOR_LANES {
      scales.v[c] = (high.v[c] - low.v[c]) / range;
      offsets.v[c] = 0.5f * low.v[c] + 0.5f * high.v[c] - 0.5f * max_code * from_half(to_half(scales.v[c]));
    }
    return affine_of(scales, offsets);
  };
  return choose_fitted(
      bits == 8 ? kOffsetRanges8 : kOffsetRanges4, start,
      [&](const QuantizedBlock& block) { return affine_sums_of(x, length, block, max_code); },
      [&](const AffineSums& sums) { return fit_affine(sums, totals, length); });
}

// 1 bit: signs, with the mean magnitude as scale.
inline QuantizedBlock quantize_int1(const LaneFloats* x, int64_t length) {
  double sums[kPanelColumns] = {};
  for (int64_t k = 0; k < length; ++k) {
    AETHER_FOR_LANES sums[c] += __builtin_fabsf(x[k].v[c]);
  }
  QuantizedBlock block = {};
  LaneFloats exact;
  AETHER_FOR_LANES exact.v[c] = static_cast<float>(sums[c] / static_cast<double>(length));
  set_scales(block, exact);
  return block;
}

inline QuantizedBlock quantize_block(const QuantizedLayout& layout, const LaneFloats* x, int64_t length) {
  if (layout.has_zero_point) return quantize_zero_point(x, length, layout.bits);
  if (layout.has_offset) return quantize_affine(x, length, layout.bits);
  if (layout.bits == 8) return quantize_int8_symmetric(x, length);
  return layout.bits == 4 ? quantize_int4_symmetric(x, length) : quantize_int1(x, length);
}

// Codes of one value of each row, unsigned as they are stored.
inline void codes_of(const QuantizedLayout& layout, const QuantizedBlock& block, const LaneFloats& inverse,
                     const LaneFloats& x, uint8_t* codes) {
  if (layout.bits == 1) {
    AETHER_FOR_LANES codes[c] = x.v[c] < 0.0f && block.scales_f32.v[c] != 0.0f ? 0 : 1;
    return;
  }
  const float offset = is_unsigned(layout) ? 0.0f : static_cast<float>(1 << (layout.bits - 1));
  const float low = is_unsigned(layout) ? 0.0f : layout.bits == 8 ? -127.0f : -offset;
  const float high = is_unsigned(layout) ? static_cast<float>((1 << layout.bits) - 1) : offset - 1.0f;
  AETHER_FOR_LANES {
    const float shifted = x.v[c] - block.offsets_f32.v[c];
    const float code = code_of(shifted, inverse.v[c], block.zeros.v[c], low, high);
    codes[c] = static_cast<uint8_t>(static_cast<int32_t>(code + offset));
  }
}

}  // namespace aether::cpu::AETHER_ISA
