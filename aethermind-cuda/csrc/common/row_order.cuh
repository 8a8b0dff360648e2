// The order of a row's elements: by descending value, then by ascending index.
//
// An element is a 64-bit rank; larger ranks come first. The upper half is the float mapped to an unsigned integer of
// the same order, the lower half the complement of the index.
#pragma once

#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

// Maps a float to an unsigned integer of the same order; -0 and 0 are equal.
__device__ __forceinline__ uint32_t ordered_bits(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float from_ordered_bits(uint32_t ordered) {
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

__device__ __forceinline__ uint64_t rank_of(float value, int index) {
  return static_cast<uint64_t>(ordered_bits(value)) << 32 | ~static_cast<uint32_t>(index);
}

__device__ __forceinline__ int index_of(uint64_t rank) { return static_cast<int>(~static_cast<uint32_t>(rank)); }

__device__ __forceinline__ float value_of(uint64_t rank) {
  return from_ordered_bits(static_cast<uint32_t>(rank >> 32));
}

// The maximum over all threads of a block; see block_reduce.
__device__ __forceinline__ uint64_t block_largest(uint64_t rank) {
  __shared__ unsigned long long partial[kWarpSize];
  const auto warp_largest = [](uint64_t value) {
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const uint64_t other = __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), distance);
      value = other > value ? other : value;
    }
    return value;
  };
  rank = warp_largest(rank);
  __syncthreads();  // `partial` of an earlier call may still be read
  if (lane_index() == 0) {
    partial[warp_index()] = rank;
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  return warp_largest(lane_index() < num_warps ? partial[lane_index()] : 0);
}

// Vectors that a thread has in flight; large loop bodies, which are unrolled once per vector, use fewer.
constexpr int kPrefetchVectors = 4;
constexpr int kShallowPrefetchVectors = 2;

// Calls body(value, index) for row[begin … end - 1], distributed over `num_threads` threads. Whole vectors are read
// whatever the row's alignment.
template <int kAhead, class Body>
__device__ __forceinline__ void for_each_logit(const float* row, int begin, int end, int thread, int num_threads,
                                               const Body& body) {
  constexpr int kWide = Vector<float>::size;
  const int misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(row + begin) / sizeof(float) % kWide);
  const int head = min(end - begin, (kWide - misaligned) % kWide);
  const int num_vectors = (end - begin - head) / kWide, tail = (end - begin - head) % kWide;
  const float* vectors = row + begin + head;
  for (int first = thread; first < num_vectors; first += kAhead * num_threads) {
    Vector<float> loaded[kAhead];
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int i = first + ahead * num_threads;
      loaded[ahead] = i < num_vectors ? Vector<float>::load(vectors + i * kWide) : Vector<float>{};
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int i = first + ahead * num_threads;
      if (i < num_vectors) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          body(loaded[ahead].values[j], begin + head + i * kWide + j);
        }
      }
    }
  }
  for (int i = thread; i < head + tail; i += num_threads) {
    const int index = i < head ? begin + i : end - tail + i - head;
    body(row[index], index);
  }
}

// As above for a whole row and the threads of a block.
template <int kAhead, class Body>
__device__ __forceinline__ void for_each_logit(const float* row, int size, const Body& body) {
  for_each_logit<kAhead>(row, 0, size, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), body);
}

// The rank of the first element of a row; every thread of the block gets it.
template <class T>
__device__ __forceinline__ uint64_t top_rank(const T* row, int width) {
  uint64_t top = 0;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    const uint64_t rank = rank_of(to_float(row[i]), i);
    top = rank > top ? rank : top;
  }
  return block_largest(top);
}

template <class T>
__device__ __forceinline__ int row_argmax(const T* row, int width) {
  return index_of(top_rank(row, width));
}

}  // namespace aether
