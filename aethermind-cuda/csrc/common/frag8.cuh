// Frag8 neighbouring values of a row: what a thread holds of a row's chunk of 32, and what tensor cores take in pairs.
#pragma once

#include "common/types.cuh"

namespace aether {

// Inputs that a warp multiplies at a time: two steps of mma.m16n8k16. The four threads 4g … 4g + 3 hold eight each.
constexpr int kChunk = 32;
constexpr int kFrag8Values = 8;

template <class T>
struct alignas(16) Frag8 {
  uint32_t pairs[4];
};
template <>
struct alignas(16) Frag8<float32> {
  float values[kFrag8Values];
};

__device__ __forceinline__ uint32_t bits_of(float16 value) { return __half_as_ushort(value); }
__device__ __forceinline__ uint32_t bits_of(bfloat16 value) { return __bfloat16_as_ushort(value); }

// Whether every row of `width` elements from `address` on is whole vectors of eight.
template <class T>
__device__ __forceinline__ bool is_frag8_aligned(const T* address, int width) {
  return is_vectorizable(address, width) && width % kFrag8Values == 0;
}

// row[k … k + 7], zero from `size` on.
template <class T>
__device__ __forceinline__ Frag8<T> load_frag8_tail(const T* row, int k, int size) {
  Frag8<T> result{};
#pragma unroll
  for (int i = 0; i < kFrag8Values; ++i) {
    if (k + i < size) {
      if constexpr (sizeof(T) == 4) {
        result.values[i] = row[k + i];
      } else {
        result.pairs[i / 2] |= bits_of(row[k + i]) << (16 * (i % 2));
      }
    }
  }
  return result;
}

// The same; where all rows are aligned (`is_vectorizable`), which they are together or not, in whole vectors.
template <class T>
__device__ __forceinline__ Frag8<T> load_frag8(const T* row, int k, int size, bool is_aligned) {
  if (is_aligned && k + kFrag8Values <= size) {
    Frag8<T> result;
    constexpr int kVectors = sizeof(Frag8<T>) / kVectorBytes;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      reinterpret_cast<uint4*>(&result)[i] = reinterpret_cast<const uint4*>(row + k)[i];
    }
    return result;
  }
  return load_frag8_tail(row, k, size);
}

}  // namespace aether
