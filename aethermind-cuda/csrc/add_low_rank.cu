// add_low_rank (LoRA): out[R, N] = y + (x[R, K] · downᵀ) · up with the adapter of each row, as in Punica's SGMV (Chen
// et al. 2023); float32, float16, bfloat16, accumulated in float32.
//
// A block computes some columns of one row. It processes the adapter's ranks in batches: its warps compute x · downᵀ,
// then every thread accumulates the products with up for its own columns. Blocks of one row recompute the first
// product, so that no block waits for another.

#include "common/dependent_launch.cuh"
#include "common/memory.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kRanksPerBatch = 32;
constexpr int kColumnsPerThread = 4;

// The dot product of two rows by a warp; every lane gets it.
template <class T>
__device__ __forceinline__ float warp_dot(const T* a, const T* b, int width) {
  constexpr int kSize = Vector<T>::size;
  float sum = 0.0f;
  int i = lane_index() * kSize;
  if (is_vectorizable(a, width) && is_vectorizable(b, width)) {
    for (; i < width; i += kWarpSize * kSize) {
      const Vector<T> left = Vector<T>::load(a + i), right = Vector<T>::load(b + i);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        sum = fmaf(to_float(left.values[j]), to_float(right.values[j]), sum);
      }
    }
  } else {
    for (i = lane_index(); i < width; i += kWarpSize) {
      sum = fmaf(to_float(a[i]), to_float(b[i]), sum);
    }
  }
  return warp_reduce<Sum>(sum);
}

template <class T>
__device__ __forceinline__ void add_low_rank(T* out, const T* y, const T* x, const T* down, const T* up,
                                             const int* cu_ranks, const int* adapters, int num_inputs, int num_outputs,
                                             int num_adapters) {
  __shared__ float weights[kRanksPerBatch];
  const int64_t row = blockIdx.x;
  const int num_threads = static_cast<int>(blockDim.x);
  const int first = static_cast<int>(blockIdx.y) * num_threads * kColumnsPerThread + static_cast<int>(threadIdx.x);
  const int adapter = adapters[row];
  int begin = 0, end = 0;
  if (adapter >= 0) {
    begin = cu_ranks[checked_index(adapter, num_adapters)];
    end = cu_ranks[adapter + 1];
  }
  float sums[kColumnsPerThread] = {};
  const T* y_row = y + row * num_outputs;
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) {
    const int column = first + i * num_threads;
    if (column < num_outputs) {
      sums[i] = to_float(y_row[column]);
    }
  }
  for (int rank = begin; rank < end; rank += kRanksPerBatch) {
    const int count = min(kRanksPerBatch, end - rank);
    for (int j = warp_index(); j < count; j += num_threads / kWarpSize) {
      const float product =
          warp_dot(x + row * num_inputs, down + static_cast<int64_t>(rank + j) * num_inputs, num_inputs);
      if (lane_index() == 0) {
        weights[j] = product;
      }
    }
    __syncthreads();
    for (int j = 0; j < count; ++j) {
      const T* up_row = up + static_cast<int64_t>(rank + j) * num_outputs;
#pragma unroll
      for (int i = 0; i < kColumnsPerThread; ++i) {
        const int column = first + i * num_threads;
        if (column < num_outputs) {
          sums[i] = fmaf(weights[j], to_float(up_row[column]), sums[i]);
        }
      }
    }
    __syncthreads();  // the next batch overwrites these products
  }
#pragma unroll
  for (int i = 0; i < kColumnsPerThread; ++i) {
    const int column = first + i * num_threads;
    if (column < num_outputs) {
      out[row * num_outputs + column] = from_float<T>(sums[i]);
    }
  }
}

}  // namespace aether

#define AETHER_ADD_LOW_RANK(T)                                                                            \
  extern "C" __global__ void add_low_rank_##T(                                                            \
      aether::T* out, const aether::T* y, const aether::T* x, const aether::T* down, const aether::T* up, \
      const int* cu_ranks, const int* adapters, int num_inputs, int num_outputs, int num_adapters) {      \
    aether::begin_kernel();                                                                               \
    aether::add_low_rank(out, y, x, down, up, cu_ranks, adapters, num_inputs, num_outputs, num_adapters); \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ADD_LOW_RANK)
