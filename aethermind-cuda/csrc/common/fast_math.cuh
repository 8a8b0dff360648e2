// Hardware approximations (ex2.approx, __fdividef) whose error is below the rounding error of their callers' results.
#pragma once

#include "common/types.cuh"

namespace aether {

constexpr float kLog2E = 1.4426950408889634f;

// 2^x to 2 units in the last place. Results below 2^-126 are zero: `exp2f` spends three more instructions on them.
__device__ __forceinline__ float fast_exp2(float x) {
#ifdef AETHER_EMULATED
  return exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

// a / b to 2 units in the last place; zero for b from 2^126 on.
__device__ __forceinline__ float fast_divide(float a, float b) {
#ifdef AETHER_EMULATED
  return a / b;
#else
  return __fdividef(a, b);
#endif
}

}  // namespace aether
