// What the sampler weighs tokens by: exp((logit - largest) / temperature) as whole numbers, so that sums do not depend
// on their order and a row has the same token in every batch and on every GPU.
//
// Weights are computed in float32 and integers: float64 is slow on most GPUs. Their relative error is below 2^-37.
#pragma once

#include "common/row_order.cuh"

namespace aether {

// 2^(-i / 512) in units of 2^-44, in shared memory.
constexpr int kPowers = 512;
using Powers = unsigned long long[kPowers];

__device__ __forceinline__ void fill_powers(Powers& powers) {
  for (int i = static_cast<int>(threadIdx.x); i < kPowers; i += static_cast<int>(blockDim.x)) {
    powers[i] = static_cast<unsigned long long>(exp2(-i / static_cast<double>(kPowers)) * 0x1p44 + 0.5);
  }
  __syncthreads();
}

// The largest logit weighs 2^bits, and a row of `size` of them stays below 2^62.
struct Weighing {
  const unsigned long long* powers;
  float largest;
  float temperature;
  float scale;  // log2(e) / temperature, in two parts
  float scale_rest;
  float limit;  // what is as many powers of two below the largest weighs nothing
  int shift;    // 52 - bits

  __device__ __forceinline__ Weighing(const Powers& powers, float largest, float temperature, int size)
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

  // NaN weighs nothing. Operations are spelt out where their rounding is made use of.
  __device__ __forceinline__ uint64_t weight(float logit) const {
    // What weighs nothing is computed as if it were the largest: without a branch, weights of several logits overlap.
    const bool is_weighed = __fmul_rn(__fsub_rn(largest, logit), scale) < limit;
    logit = is_weighed ? logit : largest;
    // distance + distance_rest is largest - logit, high + low its product with the scale: powers of two below.
    const float distance = __fsub_rn(largest, logit);
    const float high = __fmul_rn(distance, scale);
    const float back = __fsub_rn(distance, largest);
    const float distance_rest = __fsub_rn(__fsub_rn(largest, __fsub_rn(distance, back)), __fadd_rn(logit, back));
    const float rounding = __fmaf_rn(distance, scale, -high);
    const float low = __fmaf_rn(distance_rest, scale, __fmaf_rn(distance, scale_rest, rounding));
    // Steps of 1/512 by the sum's last bits, and what is left, at most half a step, in units of 2^-40.
    constexpr float kStepsAbove = 24576.0f;
    const float whole = __fadd_rn(high, kStepsAbove);
    // Unsigned, since they are never below zero: divisions by a power of two are one instruction.
    const auto steps = static_cast<uint32_t>(__float_as_int(whole) - __float_as_int(kStepsAbove));
    const float rest = __fsub_rn(high, __fsub_rn(whole, kStepsAbove));
    const int left = __float2int_rn(rest * 0x1p40f) + __float2int_rn(low * 0x1p40f);
    // 2^-left - 1 by its series to the third power.
    constexpr int kLn2 = 0x58b90bfc;  // in units of 2^-31
    const int first = static_cast<int>(static_cast<int64_t>(-left) * kLn2 >> 31);
    const int second = __mulhi(first, first) >> 9;
    const int third = __mulhi(second, first) * 21846 >> 24;
    const int correction = first + second + third;
    const uint64_t power = powers[steps % kPowers];
    const int64_t corrected =
        static_cast<int64_t>(power) + (static_cast<int64_t>(static_cast<int>(power >> 14)) * correction >> 26);
    const uint64_t doubled = static_cast<uint64_t>(corrected) << 9 >> (steps / kPowers + static_cast<uint32_t>(shift));
    return is_weighed ? (doubled + 1) >> 1 : 0;
  }

  // As the operator's page has it, for comparisons with a share; slow.
  __device__ __forceinline__ double share(float logit) const {
    return exp((static_cast<double>(logit) - static_cast<double>(largest)) / static_cast<double>(temperature));
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

// The running sum to be reached for `share` of `total`.
__device__ __forceinline__ uint64_t target_reaching(float share, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(ceil(static_cast<double>(share) * static_cast<double>(total)));
  return target < 1 ? 1 : (target < total ? target : total);
}

}  // namespace aether
