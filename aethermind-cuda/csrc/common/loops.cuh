// Nested loops over dims. Each array has its own strides.
#pragma once

#include "common/types.cuh"

namespace aether {

constexpr int kMaxDims = 6;

// From the outermost to the innermost; strides are in elements, 0 where an array is repeated. A kernel argument:
// `Loops` of kernels/_loops.py.
template <int N>
struct Loops {
  int count;
  int size[kMaxDims];
  int64_t stride[N][kMaxDims];
};

// The elements of the arrays in one iteration.
template <int N>
struct Offsets {
  int64_t of[N];
};

template <int N>
__device__ __forceinline__ Offsets<N> offsets_of(const Loops<N>& loops, int64_t iteration) {
  Offsets<N> offsets{};
#pragma unroll  // so that indices are constants, and the loops remain where kernel arguments are
  for (int d = kMaxDims - 1; d >= 0; --d) {
    if (d < loops.count) {
      const int64_t index = iteration % loops.size[d];
      iteration /= loops.size[d];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        offsets.of[n] += index * loops.stride[n][d];
      }
    }
  }
  return offsets;
}

}  // namespace aether
