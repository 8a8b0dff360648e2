// A row's temperature, top_k, top_p, min_p and random number. A block keeps them in shared memory: registers are few.
#pragma once

#include "common/softmax_weights.cuh"

namespace aether {

constexpr int kNoToken = -1;

struct SamplingParams {
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  uint32_t min_p_bits;  // min_p removes elements with smaller ordered bits
  uint64_t total;       // the mass that top_p refers to, where the cut depends on that of the row
  double random;        // the token is the one at this fraction of the mass that is kept

  __device__ __forceinline__ bool has_k() const { return top_k > 0; }
  __device__ __forceinline__ bool has_p() const { return top_p < 1.0f; }
  __device__ __forceinline__ bool has_min() const { return min_p > 0.0f; }
  __device__ __forceinline__ bool is_any() const { return has_k() || has_p() || has_min(); }
  __device__ __forceinline__ uint64_t mass_target() const { return target_reaching(top_p, total); }
  // Whether the cut depends on the mass of the whole row.
  __device__ __forceinline__ bool needs_row_total() const { return !has_k() && (has_p() || !has_min()); }
};

__device__ __forceinline__ SamplingParams sampling_params_of(float temperature, int top_k, float top_p, float min_p,
                                                             int size) {
  return {temperature, top_k < size ? top_k : 0, top_p, min_p, 0, 0, 0.0};
}

// Sets min_p_bits of parameters in shared memory: the smallest value that weighs at least min_p of the largest. The
// lanes of a warp try 32 values at a time.
__device__ __forceinline__ void find_min_p_bits(SamplingParams& params, const SoftmaxWeights& softmax) {
  if (warp_index() == 0) {
    uint32_t low = 0, high = ordered_bits(softmax.largest);
    while (low < high) {
      const uint64_t width = high - low;
      const auto tried = [&](int number) {
        return low + static_cast<uint32_t>(width * static_cast<uint64_t>(number) / kWarpSize);
      };
      const float value = from_ordered_bits(tried(lane_index()));
      const bool is_kept =
          value == value && softmax.relative_weight(value, params.temperature) >= static_cast<double>(params.min_p);
      const unsigned kept = __ballot_sync(kFullWarp, is_kept);
      const int first = kept != 0 ? __ffs(static_cast<int>(kept)) - 1 : kWarpSize;
      high = first < kWarpSize ? tried(first) : high;
      low = first > 0 ? tried(first - 1) + 1 : low;
    }
    __syncwarp();
    if (lane_index() == 0) {
      params.min_p_bits = low;
    }
  }
  __syncthreads();
}

// Ordered bits below which elements weigh nothing: 40 temperatures below the largest.
__device__ __forceinline__ uint32_t min_weighted_bits(float largest, float temperature) {
  const float smallest = largest - 40.0f * temperature;
  const uint32_t finite = ordered_bits(Max::kNeutral) + 1;
  return smallest == smallest ? max(finite, ordered_bits(smallest)) : finite;
}

}  // namespace aether
