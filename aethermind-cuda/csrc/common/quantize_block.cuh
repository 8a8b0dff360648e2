// Quantisation of a block of values, bit-identical to ops/quantization.py: the same candidates in the same order, and
// every product, quotient and sum rounded where it is rounded there.
#pragma once

#include "common/quantized_weight.cuh"

namespace aether {

constexpr float kLargestHalf = 65504.0f;

// A block's scale, and its zero point or offset.
struct BlockScale {
  float16 scale;
  float16 offset;
  float zero;
};

// Candidate ranges of codes: a block's extent divided by each is a candidate for its scale.
template <int kBits, AffineTerm kTerm>
struct CandidateRanges;
#define AETHER_CANDIDATE_RANGES(bits, term, count, ...) \
  template <>                                           \
  struct CandidateRanges<bits, AffineTerm::term> {      \
    static constexpr int kCount = count;                \
    __device__ static float at(int i) {                 \
      constexpr float kRanges[count] = {__VA_ARGS__};   \
      float result = kRanges[0];                        \
      for (int j = 1; j < count; ++j) {                 \
        result = j == i ? kRanges[j] : result;          \
      }                                                 \
      return result;                                    \
    }                                                   \
  };
AETHER_CANDIDATE_RANGES(4, kNone, 4, 8.0f, 7.25f, 8.75f, 10.0f)
AETHER_CANDIDATE_RANGES(8, kZeroPoints, 2, 255.0f, 254.0f)
AETHER_CANDIDATE_RANGES(4, kZeroPoints, 6, 15.0f, 14.0f, 15.75f, 16.5f, 17.5f, 18.75f)
AETHER_CANDIDATE_RANGES(2, kZeroPoints, 8, 3.0f, 2.0f, 3.25f, 3.5f, 4.0f, 4.5f, 5.0f, 6.0f)
AETHER_CANDIDATE_RANGES(8, kOffsets, 1, 255.0f)
AETHER_CANDIDATE_RANGES(4, kOffsets, 4, 15.0f, 15.75f, 16.5f, 17.5f)
#undef AETHER_CANDIDATE_RANGES

__device__ __forceinline__ float inverse_of(float16 scale) {
  const float value = to_float(scale);
  return value == 0.0f ? 0.0f : 1.0f / value;
}

__device__ __forceinline__ float clipped(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

// Quantises a value: to an unsigned code with a zero point or an offset, else to a signed one.
template <int kBits, AffineTerm kTerm>
__device__ __forceinline__ float code_of(float x, const BlockScale& chosen, float inverse) {
  if constexpr (kTerm == AffineTerm::kOffsets) {
    x = __fsub_rn(x, to_float(chosen.offset));
  }
  const float steps = rintf(__fmul_rn(x, inverse));
  if constexpr (kTerm == AffineTerm::kZeroPoints) {
    return clipped(__fadd_rn(steps, chosen.zero), 0.0f, (1 << kBits) - 1);
  } else if constexpr (kTerm == AffineTerm::kOffsets) {
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

  // The weight of a value's squared error; `rms` is the block's root mean square.
  template <int kBits, AffineTerm kTerm>
  __device__ __forceinline__ static double weight_of(float x, float rms) {
    return kBits == 4 && kTerm == AffineTerm::kNone ? static_cast<double>(__fadd_rn(rms, fabsf(x))) : 1.0;
  }

  template <int kBits, AffineTerm kTerm>
  __device__ __forceinline__ double squared_error(const BlockScale& candidate, float rms) const {
    const float inverse = inverse_of(candidate.scale);
    double total = 0.0;
    for (int i = 0; i < size; ++i) {
      const float x = (*this)[i];
      const float code = code_of<kBits, kTerm>(x, candidate, inverse);
      float value = __fmul_rn(to_float(candidate.scale), __fsub_rn(code, candidate.zero));
      if constexpr (kTerm == AffineTerm::kOffsets) {
        value = __fadd_rn(value, to_float(candidate.offset));
      }
      const double error = static_cast<double>(__fsub_rn(x, value));
      const double weight = weight_of<kBits, kTerm>(x, rms);
      total = __dadd_rn(total, __dmul_rn(weight, __dmul_rn(error, error)));
    }
    return total;
  }
};

// Rounds to float16 with saturation; -0 becomes +0.
__device__ __forceinline__ float16 half_of(float value) {
  return from_float<float16>(clipped(__fadd_rn(value, 0.0f), -kLargestHalf, kLargestHalf));
}

// The least-squares scale and offset for the codes of `previous`.
template <int kBits, class T>
__device__ __forceinline__ BlockScale fitted_affine(const Block<T>& block, const BlockScale& previous) {
  const float inverse = inverse_of(previous.scale);
  double sum_c = 0.0, sum_cc = 0.0, sum_x = 0.0, sum_xc = 0.0;
  for (int i = 0; i < block.size; ++i) {
    const double x = static_cast<double>(block[i]);
    const double code = static_cast<double>(code_of<kBits, AffineTerm::kOffsets>(block[i], previous, inverse));
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

// The weighted least-squares scale for the symmetric codes of `previous`.
template <int kBits, class T>
__device__ __forceinline__ BlockScale fitted_scale(const Block<T>& block, const BlockScale& previous, float rms) {
  const float inverse = inverse_of(previous.scale);
  double products = 0.0, squares = 0.0;
  for (int i = 0; i < block.size; ++i) {
    const double code = static_cast<double>(code_of<kBits, AffineTerm::kNone>(block[i], previous, inverse));
    const double weighted = __dmul_rn(Block<T>::template weight_of<kBits, AffineTerm::kNone>(block[i], rms), code);
    products = __dadd_rn(products, __dmul_rn(weighted, static_cast<double>(block[i])));
    squares = __dadd_rn(squares, __dmul_rn(weighted, code));
  }
  const double slope = squares != 0.0 ? products / squares : 0.0;
  return {from_float<float16>(static_cast<float>(slope)), previous.offset, 0.0f};
}

// The candidate with the least error so far; the first of equals.
template <int kBits, AffineTerm kTerm, class T>
struct BestScale {
  const Block<T>& block;
  float rms;
  BlockScale best{from_float<float16>(0.0f), from_float<float16>(0.0f), 0.0f};
  double error = __builtin_huge_val();

  __device__ __forceinline__ void consider(const BlockScale& candidate) {
    const double candidate_error = block.template squared_error<kBits, kTerm>(candidate, rms);
    if (candidate_error < error) {
      error = candidate_error;
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
template <int kBits, AffineTerm kTerm, class T>
__device__ __forceinline__ BlockScale scale_of(const Block<T>& block, const Extent& extent) {
  const float16 none = from_float<float16>(0.0f);
  if constexpr (kBits == 1) {
    const float mean = static_cast<float>(extent.magnitudes / static_cast<double>(block.size));
    return {from_float<float16>(mean), none, 0.0f};
  } else if constexpr (kBits == 8 && kTerm == AffineTerm::kNone) {
    return {int8_symmetric_scale(fabsf(extent.peak)), none, 0.0f};
  } else {
    using Candidates = CandidateRanges<kBits, kTerm>;
    constexpr float kMaxCode = (1 << kBits) - 1;
    const float rms = static_cast<float>(sqrt(extent.squares / static_cast<double>(block.size)));
    BestScale<kBits, kTerm, T> choice{block, rms};
    const float low = kTerm == AffineTerm::kZeroPoints ? fminf(extent.low, 0.0f) : extent.low;
    const float high = kTerm == AffineTerm::kZeroPoints ? fmaxf(extent.high, 0.0f) : extent.high;
    const float width = __fsub_rn(high, low);
    const float middle = __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high));
#pragma unroll 1
    for (int i = 0; i < Candidates::kCount; ++i) {
      const float range = Candidates::at(i);
      if constexpr (kTerm == AffineTerm::kNone) {
        BlockScale scale{from_float<float16>(extent.peak / -range), none, 0.0f};
#pragma unroll 1
        for (int fits = 0; fits <= 2; ++fits) {
          scale = fits == 0 ? scale : fitted_scale<kBits>(block, scale, rms);
          choice.consider(scale);
        }
      } else if constexpr (kTerm == AffineTerm::kZeroPoints) {
        const float16 scale = from_float<float16>(width / range);
        const float scaled_low = __fmul_rn(-low, fminf(range, kMaxCode));
        choice.consider({scale, none, to_float(scale) == 0.0f ? 0.0f : rintf(scaled_low / width)});
      } else {
        BlockScale affine{half_of(width / range), none, 0.0f};
        affine.offset = half_of(__fsub_rn(middle, __fmul_rn(0.5f * kMaxCode, to_float(affine.scale))));
#pragma unroll 1
        for (int fits = 0; fits <= 2; ++fits) {
          affine = fits == 0 ? affine : fitted_affine<kBits>(block, affine);
          choice.consider(affine);
        }
      }
    }
    return choice.best;
  }
}

}  // namespace aether
