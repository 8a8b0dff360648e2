// The sampler's softmax numerators exp((logit - largest) / temperature) as 64-bit integers, so that sums do not depend
// on their order and a row samples the same token in every batch and on every GPU (batch invariance).
//
// They are computed in float32 and integers: float64 is slow on most GPUs. Their relative error is below 2^-37.
#pragma once

#include "common/row_order.cuh"

namespace aether {

// Table of 2^(-i / 512) in units of 2^-44, in shared memory.
constexpr int kPowers = 512;
using Powers = unsigned long long[kPowers];

__device__ __forceinline__ void fill_powers(Powers& powers) {
  for (int i = static_cast<int>(threadIdx.x); i < kPowers; i += static_cast<int>(blockDim.x)) {
    powers[i] = static_cast<unsigned long long>(exp2(-i / static_cast<double>(kPowers)) * 0x1p44 + 0.5);
  }
  __syncthreads();
}

// The largest logit weighs 2^bits, chosen so that the sum of `size` weights is below 2^62.
struct SoftmaxWeights {
  const unsigned long long* powers;
  float largest;
  float temperature;
  float scale;  // log2(e) / temperature, in two parts
  float scale_rest;
  float limit;  // this many powers of two below the largest, the weight is 0
  int shift;    // 52 - bits

  __device__ __forceinline__ SoftmaxWeights(const Powers& powers, float largest, float temperature, int size)
      : powers(powers), largest(largest), temperature(temperature), shift(0) {
    constexpr double kLog2E = 1.4426950408889634;
    const double exact = kLog2E / static_cast<double>(temperature);
    scale = static_cast<float>(exact < 3e38 ? exact : 3e38);
    scale_rest = static_cast<float>(exact < 3e38 ? exact - static_cast<double>(scale) : 0.0);
    while (shift < 52 && static_cast<uint64_t>(size) >= uint64_t{1} << (10 + shift)) {
      ++shift;
    }
    limit = static_cast<float>(55 - shift);
  }

  // The weight of NaN is 0. Rounded operations are explicit where the result relies on their rounding.
  __device__ __forceinline__ uint64_t weight(float logit) const {
    // Elements without weight are computed as if they were the largest: branch-free code overlaps several logits.
    const bool is_in_range = __fmul_rn(__fsub_rn(largest, logit), scale) < limit;
    logit = is_in_range ? logit : largest;
    // distance + distance_rest is largest - logit exactly; high + low is its product with the scale, a base-2 exponent.
    const float distance = __fsub_rn(largest, logit);
    const float high = __fmul_rn(distance, scale);
    const float back = __fsub_rn(distance, largest);
    const float distance_rest = __fsub_rn(__fsub_rn(largest, __fsub_rn(distance, back)), __fadd_rn(logit, back));
    const float rounding = __fmaf_rn(distance, scale, -high);
    const float low = __fmaf_rn(distance_rest, scale, __fmaf_rn(distance, scale_rest, rounding));
    // The exponent in steps of 1/512, from the low bits of the sum, and the remainder of at most half a step in units
    // of 2^-40.
    constexpr float kStepsAbove = 24576.0f;
    const float whole = __fadd_rn(high, kStepsAbove);
    // Unsigned, so that divisions by a power of two are one instruction.
    const auto steps = static_cast<uint32_t>(__float_as_int(whole) - __float_as_int(kStepsAbove));
    const float rest = __fsub_rn(high, __fsub_rn(whole, kStepsAbove));
    const int remainder = __float2int_rn(rest * 0x1p40f) + __float2int_rn(low * 0x1p40f);
    // 2^-remainder - 1 by its third-order series.
    constexpr int kLn2 = 0x58b90bfc;  // in units of 2^-31
    const int first = static_cast<int>(static_cast<int64_t>(-remainder) * kLn2 >> 31);
    const int second = __mulhi(first, first) >> 9;
    const int third = __mulhi(second, first) * 21846 >> 24;
    const int correction = first + second + third;
    const uint64_t power = powers[steps % kPowers];
    const int64_t corrected =
        static_cast<int64_t>(power) + (static_cast<int64_t>(static_cast<int>(power >> 14)) * correction >> 26);
    const uint64_t doubled = static_cast<uint64_t>(corrected) << 9 >> (steps / kPowers + static_cast<uint32_t>(shift));
    return is_in_range ? (doubled + 1) >> 1 : 0;
  }

  // The definition of the operator's page in float64, for the comparison with min_p; slow.
  __device__ __forceinline__ double relative_weight(float logit) const {
    return exp((static_cast<double>(logit) - static_cast<double>(largest)) / static_cast<double>(temperature));
  }
};

__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), distance);
  }
  return value;
}

// The sum over all threads of a block; see block_reduce.
__device__ __forceinline__ uint64_t block_sum(uint64_t value) {
  __shared__ unsigned long long partial[kWarpSize];
  value = warp_sum(value);
  __syncthreads();  // `partial` of an earlier call may still be read
  if (lane_index() == 0) {
    partial[warp_index()] = value;
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  return warp_sum(lane_index() < num_warps ? partial[lane_index()] : 0);
}

// The smallest running sum that exceeds `fraction` of `total`; `fraction` is below 1.
__device__ __forceinline__ uint64_t target_beyond(double fraction, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(fraction * static_cast<double>(total)) + 1;
  return target < total ? target : total;
}

// The smallest running sum that is at least `fraction` of `total`.
__device__ __forceinline__ uint64_t target_reaching(float fraction, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(ceil(static_cast<double>(fraction) * static_cast<double>(total)));
  return target < 1 ? 1 : (target < total ? target : total);
}

}  // namespace aether
