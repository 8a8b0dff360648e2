// Activation functions in float32: SiLU, GELU and its tanh approximation, and the soft cap.
#pragma once

#include "common/fast_math.cuh"
#include "common/types.cuh"

namespace aether {

// x · sigmoid(x). For very negative x exp overflows to infinity, and the quotient is zero.
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// SiLU for results that are rounded to T. Errors of the approximations are far below the last place of 16 bits.
template <class T>
__device__ __forceinline__ float silu_for(float x) {
  if constexpr (sizeof(T) == 4) {
    return silu(x);
  } else {
    return fast_divide(x, 1.0f + fast_exp2(-kLog2E * x));
  }
}

// 1 / (1 + e^-x), for results that are rounded to T.
template <class T>
__device__ __forceinline__ float sigmoid_for(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return fast_divide(1.0f, 1.0f + fast_exp2(-kLog2E * x));
  }
}

// x · Φ(x). It uses erfc(-x/√2) instead of 1 + erf(x/√2), which would cancel for negative x.
__device__ __forceinline__ float gelu(float x) {
  constexpr float kSqrtHalf = 0.70710678118654752f;
  return 0.5f * x * erfcf(-x * kSqrtHalf);
}

// The tanh approximation of GELU (Hendrycks and Gimpel 2016).
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kSqrtTwoOverPi = 0.79788456080286536f;
  return 0.5f * x * (1.0f + tanhf(kSqrtTwoOverPi * (x + 0.044715f * x * x * x)));
}

// cap · tanh(x / cap), a smooth limit of ±cap.
__device__ __forceinline__ float softcap(float x, float cap) { return cap * tanhf(x / cap); }

}  // namespace aether
