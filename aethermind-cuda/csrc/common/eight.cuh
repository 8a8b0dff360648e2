// Eight neighbouring values of a row: what a thread holds of a row's chunk of 32, and what tensor cores take in pairs.
#pragma once

#include "common/types.cuh"

namespace aether {

// Inputs that a warp multiplies at a time: two steps of mma.m16n8k16. The four threads 4g … 4g + 3 hold eight each.
constexpr int kChunk = 32;
constexpr int kEight = 8;

template <class T>
struct alignas(16) Eight {
  uint32_t pairs[4];
};
template <>
struct alignas(16) Eight<float32> {
  float values[kEight];
};

__device__ __forceinline__ uint32_t bits_of(float16 value) { return __half_as_ushort(value); }
__device__ __forceinline__ uint32_t bits_of(bfloat16 value) { return __bfloat16_as_ushort(value); }

// Whether every row of `width` elements from `address` on is whole vectors of eight.
template <class T>
__device__ __forceinline__ bool is_eights(const T* address, int width) {
  return is_vectorizable(address, width) && width % kEight == 0;
}

// row[k … k + 7], zero from `size` on.
template <class T>
__device__ __forceinline__ Eight<T> load_some(const T* row, int k, int size) {
  Eight<T> result{};
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
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
__device__ __forceinline__ Eight<T> load_eight(const T* row, int k, int size, bool is_aligned) {
  if (is_aligned && k + kEight <= size) {
    Eight<T> result;
    constexpr int kVectors = sizeof(Eight<T>) / kVectorBytes;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      reinterpret_cast<uint4*>(&result)[i] = reinterpret_cast<const uint4*>(row + k)[i];
    }
    return result;
  }
  return load_some(row, k, size);
}

}  // namespace aether
