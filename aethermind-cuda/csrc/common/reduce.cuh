// Warp and block reductions of float32 values.
#pragma once

#include "common/types.cuh"

namespace aether {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarpSize; }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }

struct Sum {
  static constexpr float kNeutral = 0.0f;
  __device__ __forceinline__ static float combine(float a, float b) { return a + b; }
};

struct Max {
  static constexpr float kNeutral = -__builtin_huge_valf();
  __device__ __forceinline__ static float combine(float a, float b) { return fmaxf(a, b); }
};

// Reduces over all 32 lanes; every lane gets the result.
template <class Operation>
__device__ __forceinline__ float warp_reduce(float value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = Operation::combine(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// Reduces over all threads of a block; every thread gets the result and must call it. Blocks are one-dimensional and of
// whole warps. The order of combination depends on the block size only.
template <class Operation>
__device__ __forceinline__ float block_reduce(float value) {
  __shared__ float partial[kWarpSize];
  value = warp_reduce<Operation>(value);
  __syncthreads();  // `partial` of an earlier call may still be read
  if (lane_index() == 0) {
    partial[warp_index()] = value;
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  return warp_reduce<Operation>(lane_index() < num_warps ? partial[lane_index()] : Operation::kNeutral);
}

}  // namespace aether
