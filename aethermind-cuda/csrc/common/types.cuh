// Element types named like the project's dtypes, their conversions to and from float32, and vector loads.
//
// Host compilers compile these sources too (with AETHER_EMULATED defined), so kernels are plain CUDA C++ and PTX is
// wrapped in functions of this folder.
#pragma once

#ifdef AETHER_EMULATED
#include "emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>

namespace aether {

using float32 = float;
using float16 = __half;
using bfloat16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float32 value) { return value; }
__device__ __forceinline__ float to_float(float16 value) { return __half2float(value); }
__device__ __forceinline__ float to_float(bfloat16 value) { return __bfloat162float(value); }

// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float32 from_float<float32>(float value) {
  return value;
}
template <>
__device__ __forceinline__ float16 from_float<float16>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Width of the widest load of a thread.
constexpr int kVectorBytes = 16;

// N elements loaded or stored by one instruction; the address must be a multiple of their size.
template <class T, int N = kVectorBytes / static_cast<int>(sizeof(T))>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
  static constexpr int size = N;

  __device__ __forceinline__ static Vector load(const T* address) { return *reinterpret_cast<const Vector*>(address); }
  __device__ __forceinline__ void store(T* address) const { *reinterpret_cast<Vector*>(address) = *this; }
};

// Whether every row of `width` elements from `address` on can be read in whole vectors.
template <class T>
__device__ __forceinline__ bool is_vectorizable(const T* address, int width) {
  return reinterpret_cast<uintptr_t>(address) % kVectorBytes == 0 && width % Vector<T>::size == 0;
}

}  // namespace aether

// Instantiates an entry point for every float type.
#define AETHER_FOR_EACH_FLOAT(macro) macro(float32) macro(float16) macro(bfloat16)
