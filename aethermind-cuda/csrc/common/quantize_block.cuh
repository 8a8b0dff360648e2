// Quantisation of a block of values, bit-identical to ops/quantization.py: the same candidates in the same order, and
// every product, quotient and sum rounded where it is rounded there.
#pragma once

#include "common/quantized_weight.cuh"

namespace aether {

constexpr float kLargestHalf = 65504.0f;

// A block's scale, and its zero point or offset.
struct Scale {
  float16 scale;
  float16 offset;
  float zero;
};

// Candidate ranges of codes: a block's extent divided by each is a candidate for its scale.
template <int kBits, Shift kShift>
struct CandidateRanges;
#define AETHER_STEPS(bits, shift, count, ...)        \
  template <>                                        \
  struct CandidateRanges<bits, Shift::shift> {       \
    static constexpr int kCount = count;             \
    __device__ static float at(int i) {              \
      constexpr float kSteps[count] = {__VA_ARGS__}; \
      float result = kSteps[0];                      \
      for (int j = 1; j < count; ++j) {              \
        result = j == i ? kSteps[j] : result;        \
      }                                              \
      return result;                                 \
    }                                                \
  };
AETHER_STEPS(4, kNone, 4, 8.0f, 7.25f, 8.75f, 10.0f)
AETHER_STEPS(8, kZeros, 2, 255.0f, 254.0f)
AETHER_STEPS(4, kZeros, 6, 15.0f, 14.0f, 15.75f, 16.5f, 17.5f, 18.75f)
AETHER_STEPS(2, kZeros, 8, 3.0f, 2.0f, 3.25f, 3.5f, 4.0f, 4.5f, 5.0f, 6.0f)
AETHER_STEPS(8, kOffsets, 1, 255.0f)
AETHER_STEPS(4, kOffsets, 4, 15.0f, 15.75f, 16.5f, 17.5f)
#undef AETHER_STEPS

__device__ __forceinline__ float inverse_of(float16 scale) {
  const float wide = to_float(scale);
  return wide == 0.0f ? 0.0f : 1.0f / wide;
}

__device__ __forceinline__ float clipped(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

// Quantises a value: to an unsigned code with a zero point or an offset, else to a signed one.
template <int kBits, Shift kShift>
__device__ __forceinline__ float code_of(float x, const Scale& chosen, float inverse) {
  if constexpr (kShift == Shift::kOffsets) {
    x = __fsub_rn(x, to_float(chosen.offset));
  }
  const float steps = rintf(__fmul_rn(x, inverse));
  if constexpr (kShift == Shift::kZeros) {
    return clipped(__fadd_rn(steps, chosen.zero), 0.0f, (1 << kBits) - 1);
  } else if constexpr (kShift == Shift::kOffsets) {
    return clipped(steps, 0.0f, (1 << kBits) - 1);
  } else if constexpr (kBits == 8) {
    return clipped(steps, -127.0f, 127.0f);
  } else {
    return clipped(steps, -(1 << (kBits - 1)), (1 << (kBits - 1)) - 1);
  }
}

// A block of `size` values of a row, read in order by one thread.
template <class T>
struct Block {
  const T* values;
  int size;

  __device__ __forceinline__ float operator[](int i) const { return to_float(values[i]); }

  // The weight of a value's squared error; `typical` is the block's root mean square.
  template <int kBits, Shift kShift>
  __device__ __forceinline__ static double weight_of(float x, float typical) {
    return kBits == 4 && kShift == Shift::kNone ? static_cast<double>(__fadd_rn(typical, fabsf(x))) : 1.0;
  }

  template <int kBits, Shift kShift>
  __device__ __forceinline__ double squared_error(const Scale& candidate, float typical) const {
    const float inverse = inverse_of(candidate.scale);
    double total = 0.0;
    for (int i = 0; i < size; ++i) {
      const float x = (*this)[i];
      const float code = code_of<kBits, kShift>(x, candidate, inverse);
      float value = __fmul_rn(to_float(candidate.scale), __fsub_rn(code, candidate.zero));
      if constexpr (kShift == Shift::kOffsets) {
        value = __fadd_rn(value, to_float(candidate.offset));
      }
      const double error = static_cast<double>(__fsub_rn(x, value));
      const double weight = weight_of<kBits, kShift>(x, typical);
      total = __dadd_rn(total, __dmul_rn(weight, __dmul_rn(error, error)));
    }
    return total;
  }
};

// Rounds to float16 with saturation; -0 becomes +0.
__device__ __forceinline__ float16 half_of(float value) {
  return from_float<float16>(clipped(__fadd_rn(value, 0.0f), -kLargestHalf, kLargestHalf));
}

// The least-squares scale and offset for the codes of `last`.
template <int kBits, class T>
__device__ __forceinline__ Scale fitted_affine(const Block<T>& block, const Scale& last) {
  const float inverse = inverse_of(last.scale);
  double sum_c = 0.0, sum_cc = 0.0, sum_x = 0.0, sum_xc = 0.0;
  for (int i = 0; i < block.size; ++i) {
    const double x = static_cast<double>(block[i]);
    const double code = static_cast<double>(code_of<kBits, Shift::kOffsets>(block[i], last, inverse));
    sum_c = __dadd_rn(sum_c, code);
    sum_cc = __dadd_rn(sum_cc, __dmul_rn(code, code));
    sum_x = __dadd_rn(sum_x, x);
    sum_xc = __dadd_rn(sum_xc, __dmul_rn(x, code));
  }
  const double count = static_cast<double>(block.size);
  const double determinant = __dadd_rn(__dmul_rn(count, sum_cc), -__dmul_rn(sum_c, sum_c));
  double slope = 0.0;
  if (determinant != 0.0) {
    slope = __dadd_rn(__dmul_rn(count, sum_xc), -__dmul_rn(sum_c, sum_x)) / determinant;
  }
  const double offset = __dadd_rn(sum_x, -__dmul_rn(slope, sum_c)) / count;
  return {half_of(static_cast<float>(slope)), half_of(static_cast<float>(offset)), 0.0f};
}

// The weighted least-squares scale for the symmetric codes of `last`.
template <int kBits, class T>
__device__ __forceinline__ Scale fitted_scale(const Block<T>& block, const Scale& last, float typical) {
  const float inverse = inverse_of(last.scale);
  double products = 0.0, squares = 0.0;
  for (int i = 0; i < block.size; ++i) {
    const double code = static_cast<double>(code_of<kBits, Shift::kNone>(block[i], last, inverse));
    const double weighted = __dmul_rn(Block<T>::template weight_of<kBits, Shift::kNone>(block[i], typical), code);
    products = __dadd_rn(products, __dmul_rn(weighted, static_cast<double>(block[i])));
    squares = __dadd_rn(squares, __dmul_rn(weighted, code));
  }
  const double slope = squares != 0.0 ? products / squares : 0.0;
  return {from_float<float16>(static_cast<float>(slope)), last.offset, 0.0f};
}

// The candidate with the least error so far; the first of equals.
template <int kBits, Shift kShift, class T>
struct Choice {
  const Block<T>& block;
  float typical;
  Scale best{from_float<float16>(0.0f), from_float<float16>(0.0f), 0.0f};
  double error = __builtin_huge_val();

  __device__ __forceinline__ void offer(const Scale& candidate) {
    const double its_error = block.template squared_error<kBits, kShift>(candidate, typical);
    if (its_error < error) {
      error = its_error;
      best = candidate;
    }
  }
};

// The scale that maps the largest magnitude to 127; rounded up where float16 would clip that value.
__device__ __forceinline__ float16 int8_symmetric_scale(float largest) {
  float16 scale = from_float<float16>(largest / 127.0f);
  if (__fmul_rn(127.5f, to_float(scale)) < largest) {
    scale = __ushort_as_half(static_cast<unsigned short>(__half_as_ushort(scale) + 1));
  }
  return scale;
}

// Statistics of a block: minimum, maximum, the value of largest magnitude (NaN if any is), and the sums of magnitudes
// and of squares.
struct Extent {
  float low;
  float high;
  float peak;
  double magnitudes;
  double squares;
};

template <class T>
__device__ __forceinline__ Extent extent_of(const Block<T>& block) {
  const float first = block[0];
  Extent result{first, first, first, 0.0, 0.0};
  for (int i = 0; i < block.size; ++i) {
    const float x = block[i];
    result.low = fminf(result.low, x);
    result.high = fmaxf(result.high, x);
    if (fabsf(x) > fabsf(result.peak) || isnan(x)) {
      result.peak = x;
    }
    result.magnitudes = __dadd_rn(result.magnitudes, static_cast<double>(fabsf(x)));
    result.squares = __dadd_rn(result.squares, __dmul_rn(static_cast<double>(x), static_cast<double>(x)));
  }
  return result;
}

// Chooses the scale of a block, and its zero point or offset.
template <int kBits, Shift kShift, class T>
__device__ __forceinline__ Scale scale_of(const Block<T>& block, const Extent& extent) {
  const float16 none = from_float<float16>(0.0f);
  if constexpr (kBits == 1) {
    const float mean = static_cast<float>(extent.magnitudes / static_cast<double>(block.size));
    return {from_float<float16>(mean), none, 0.0f};
  } else if constexpr (kBits == 8 && kShift == Shift::kNone) {
    return {int8_symmetric_scale(fabsf(extent.peak)), none, 0.0f};
  } else {
    using Candidates = CandidateRanges<kBits, kShift>;
    constexpr float kMost = (1 << kBits) - 1;
    const float typical = static_cast<float>(sqrt(extent.squares / static_cast<double>(block.size)));
    Choice<kBits, kShift, T> choice{block, typical};
    const float low = kShift == Shift::kZeros ? fminf(extent.low, 0.0f) : extent.low;
    const float high = kShift == Shift::kZeros ? fmaxf(extent.high, 0.0f) : extent.high;
    const float width = __fsub_rn(high, low);
    const float middle = __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high));
#pragma unroll 1
    for (int i = 0; i < Candidates::kCount; ++i) {
      const float steps = Candidates::at(i);
      if constexpr (kShift == Shift::kNone) {
        Scale scale{from_float<float16>(extent.peak / -steps), none, 0.0f};
#pragma unroll 1
        for (int fits = 0; fits <= 2; ++fits) {
          scale = fits == 0 ? scale : fitted_scale<kBits>(block, scale, typical);
          choice.offer(scale);
        }
      } else if constexpr (kShift == Shift::kZeros) {
        const float16 scale = from_float<float16>(width / steps);
        const float share = __fmul_rn(-low, fminf(steps, kMost));
        choice.offer({scale, none, to_float(scale) == 0.0f ? 0.0f : rintf(share / width)});
      } else {
        Scale line{half_of(width / steps), none, 0.0f};
        line.offset = half_of(__fsub_rn(middle, __fmul_rn(0.5f * kMost, to_float(line.scale))));
#pragma unroll 1
        for (int fits = 0; fits <= 2; ++fits) {
          line = fits == 0 ? line : fitted_affine<kBits>(block, line);
          choice.offer(line);
        }
      }
    }
    return choice.best;
  }
}

}  // namespace aether
