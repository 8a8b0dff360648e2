// Frag8: eight consecutive values of a row, one thread's share of a 32-value chunk of K, in register pairs for mma.
#pragma once

#include "common/types.cuh"

namespace aether {

// K values that a warp multiplies at a time: two mma.m16n8k16. Threads 4g … 4g + 3 hold eight values each.
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

// Whether every row of `width` elements at `address` can be loaded as whole fragments.
template <class T>
__device__ __forceinline__ bool is_frag8_aligned(const T* address, int width) {
  return is_vectorizable(address, width) && width % kFrag8Values == 0;
}

// Loads row[k … k + 7] element by element; elements at `size` and beyond are zero.
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

// Loads row[k … k + 7] by 16-byte loads where rows are aligned (`is_vectorizable`), else as `load_frag8_tail`.
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
