// What the sampler weighs tokens by: exp((logit - largest) / temperature) as whole numbers, so that sums do not depend
// on their order and a row has the same token in every batch and on every GPU.
#pragma once

#include "common/row_order.cuh"

namespace aether {

// The largest logit weighs 2^bits, and a row of `size` of them stays below 2^63.
struct Weighing {
  double largest;
  double inverse_temperature;
  double unit;

  __device__ __forceinline__ Weighing(float largest, float temperature, int size)
      : largest(largest), inverse_temperature(1.0 / static_cast<double>(temperature)) {
    int bits = 52;
    while (bits > 0 && (static_cast<uint64_t>(size) << bits) >> bits != static_cast<uint64_t>(size)) {
      --bits;
    }
    while (bits > 0 && static_cast<uint64_t>(size) << bits >= uint64_t{1} << 62) {
      --bits;
    }
    unit = static_cast<double>(uint64_t{1} << bits);
  }

  __device__ __forceinline__ double share(float logit) const {
    return exp((static_cast<double>(logit) - largest) * inverse_temperature);
  }

  __device__ __forceinline__ uint64_t weight(float logit) const {
    const double scaled = share(logit) * unit;
    return scaled >= 0.5 ? static_cast<uint64_t>(scaled + 0.5) : 0;  // NaN weighs nothing
  }
};

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), distance);
  }
  return value;
}

// The sum over all threads of a block, in every one of them; as block_reduce.
__device__ __forceinline__ uint64_t block_sum(uint64_t value) {
  __shared__ unsigned long long partial[kWarpSize];
  value = warp_sum(value);
  __syncthreads();  // an earlier call may still be read
  if (lane_index() == 0) {
    partial[warp_index()] = value;
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  return warp_sum(lane_index() < num_warps ? partial[lane_index()] : 0);
}

// A running sum becomes at least this much where its share of `total` exceeds `share`, which is below 1.
__device__ __forceinline__ uint64_t target_beyond(double share, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(share * static_cast<double>(total)) + 1;
  return target < total ? target : total;
}

}  // namespace aether
