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
inline constexpr Steps kSignedSteps4 = {8, {8.0f, 7.0f, 7.25f, 7.75f, 8.25f, 8.75f, 9.25f, 10.0f}};
inline constexpr Steps kSteps8 = {2, {255.0f, 254.0f}};
inline constexpr Steps kSteps4 = {6, {15.0f, 14.0f, 15.75f, 16.5f, 17.5f, 18.75f}};
inline constexpr Steps kSteps2 = {8, {3.0f, 2.0f, 3.25f, 3.5f, 4.0f, 4.5f, 5.0f, 6.0f}};

// A lane's value each.
struct Floats {
  float v[kPanelColumns];
};

struct QuantizedBlock {
  uint16_t scales[kPanelColumns];
  Floats wide, zeros;  // the scales as float32
};

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

// 4 bits: the first of the largest magnitudes gets a negative code.
inline QuantizedBlock quantize_coarsely(const Floats* x, int64_t length) {
  Floats peak = x[0], largest;
  AETHER_FOR_LANES largest.v[c] = __builtin_fabsf(peak.v[c]);
  for (int64_t k = 1; k < length; ++k) {
    AETHER_FOR_LANES {
      const float magnitude = __builtin_fabsf(x[k].v[c]);
      peak.v[c] = magnitude > largest.v[c] ? x[k].v[c] : peak.v[c];
      largest.v[c] = magnitude > largest.v[c] ? magnitude : largest.v[c];
    }
  }
  return choose(x, length, kSignedSteps4, -8.0f, 7.0f, [&](float steps) {
    QuantizedBlock block = {};
    Floats exact;
    AETHER_FOR_LANES exact.v[c] = peak.v[c] / -steps;
    set_scales(block, exact);
    return block;
  });
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
  const float offset = layout.has_zero_point ? 0.0f : static_cast<float>(1 << (layout.bits - 1));
  const float low = layout.has_zero_point ? 0.0f : layout.bits == 8 ? -127.0f : -offset;
  const float high = layout.has_zero_point ? static_cast<float>((1 << layout.bits) - 1) : offset - 1.0f;
  AETHER_FOR_LANES {
    codes[c] =
        static_cast<uint8_t>(static_cast<int32_t>(code_of(x.v[c], inverse.v[c], block.zeros.v[c], low, high) + offset));
  }
}

}  // namespace aether::cpu::AETHER_ISA
