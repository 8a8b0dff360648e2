// The sampler's softmax numerators exp((logit - largest) / temperature) as 64-bit integers, so that sums do not depend
// on their order and a row samples the same token in every batch and on every GPU (batch invariance).
//
// They are computed in float32 and integers: float64 is slow on most GPUs. Their relative error is below 2^-33.
#pragma once

#include "common/row_order.cuh"

namespace aether {

constexpr int kPowerBits = 9;
constexpr int kPowers = 1 << kPowerBits;

// Table of 2^(-i / 512) in units of 2^-62, in shared memory. Lanes read copies of it that are in different banks: with
// one copy, a warp's random reads take three times as long as with eight.
template <int kCopies>
struct PowerTable {
  unsigned long long values[kPowers * kCopies];

  __device__ __forceinline__ void fill() {
    for (int i = static_cast<int>(threadIdx.x); i < kPowers; i += static_cast<int>(blockDim.x)) {
      const auto power = static_cast<unsigned long long>(exp2(-i / static_cast<double>(kPowers)) * 0x1p62);
      for (int copy = 0; copy < kCopies; ++copy) {
        values[i * kCopies + copy] = power;
      }
    }
    __syncthreads();
  }

  // The bytes before a lane's copy.
  __device__ __forceinline__ static uint32_t lane_offset() {
    return static_cast<uint32_t>(lane_index() % kCopies) * sizeof(unsigned long long);
  }

  // The power of i % 512 in a lane's copy: masked and joined by one instruction.
  __device__ __forceinline__ static unsigned long long at(const unsigned long long* values, uint32_t lane_offset,
                                                          uint32_t i) {
    constexpr uint32_t kBytes = kCopies * sizeof(unsigned long long);
    const auto* bytes = reinterpret_cast<const char*>(values) + ((i * kBytes & (kPowers - 1) * kBytes) | lane_offset);
    return *reinterpret_cast<const unsigned long long*>(bytes);
  }
};

using Powers = PowerTable<1>;
using FastPowers = PowerTable<8>;  // for kernels that weigh all logits of a row

// log2(e) / temperature, as a sum of two float32 and in float64.
struct SoftmaxScale {
  double exact;
  float high;
  float low;

  __device__ __forceinline__ explicit SoftmaxScale(float temperature) {
    constexpr double kLog2E = 1.4426950408889634;
    exact = fmin(fmax(kLog2E / static_cast<double>(temperature), 1e-36), 3e38);
    high = static_cast<float>(exact);
    low = static_cast<float>(exact - static_cast<double>(high));
  }
};

constexpr int kMaxWeightBits = 53;

// The largest logit weighs about 2^bits, at most 2^53.
template <class Table>
struct WeightsBy {
  // Added to a number of [-8192, 8192), it rounds to a multiple of 1/512, and shows that multiple in its low bits.
  static constexpr float kStepsAbove = 24576.0f;

  const unsigned long long* powers;
  uint32_t lane_offset;  // of this lane's copy of the powers
  SoftmaxScale scale;
  float largest;
  int bits;
  float offset;  // subtracted from every logit, exactly
  float range;   // logits further below the largest weigh 0
  float lowest;  // the smallest logit that may weigh more, after the subtraction
  float base;    // kStepsAbove plus the power of two that weighs 2^bits
  int shift;     // of a power in the table, less the steps of exponent 0

  __device__ __forceinline__ WeightsBy(const Table& table, const SoftmaxScale& scale, float largest, int bits)
      : powers(table.values), lane_offset(Table::lane_offset()), scale(scale), bits(bits) {
    range = __fdiv_rn(static_cast<float>(bits) + 0.5f, scale.high);
    shift = 62 - bits - (__float_as_int(kStepsAbove) >> kPowerBits);
    set_largest(largest);
  }

  __device__ __forceinline__ void set_largest(float value) {
    constexpr float kMaxPower = 1024.0f;
    largest = value;
    // Logits with weight are so close to a far largest one that their difference is exact.
    offset = fabsf(__fmul_rn(largest, scale.high)) < kMaxPower ? 0.0f : largest;
    const float top = __fsub_rn(largest, offset);
    lowest = fmaxf(__fsub_rn(top, range), -3.4028235e38f);
    base = __fadd_rn(kStepsAbove, __fsub_rn(__fmaf_rn(top, scale.high, kStepsAbove), kStepsAbove));
  }

  // The weights of the same temperature and bits where another logit is the largest.
  __device__ __forceinline__ WeightsBy relative_to(float other) const {
    WeightsBy result = *this;
    result.set_largest(other);
    return result;
  }

  // Log2 of the number whose weight is 2^bits, for the ratio of two units.
  __device__ __forceinline__ double reference() const {
    return static_cast<double>(offset) * scale.exact + static_cast<double>(__fsub_rn(base, kStepsAbove));
  }

  // The weight of a logit in units of 2^-bits, rounded down; that of NaN is 0. Rounded operations are explicit where
  // the result relies on their rounding.
  __device__ __forceinline__ uint64_t weight(float logit) const {
    // Logits without weight are computed as if they were the lowest: branch-free code overlaps several logits.
    return weight_at(fmaxf(__fsub_rn(logit, offset), lowest));
  }

  // Logits below this weigh nothing.
  __device__ __forceinline__ float smallest() const { return __fadd_rn(lowest, offset); }

  // As above, of a logit from which `offset` has been subtracted, and which is not below the lowest.
  __device__ __forceinline__ uint64_t weight_at(float x) const {
    // x · scale as a multiple of 1/512 and a rest of at most half a step, or little more. The multiple counts steps
    // down from the base, so that they are added to the shift.
    const float rounded = __fmaf_rn(x, -scale.high, base);
    const float multiple = __fsub_rn(base, rounded);
    const float rest = __fmaf_rn(x, scale.low, __fmaf_rn(x, scale.high, -multiple));
    // 2^rest - 1 in units of 2^-36, by its third-order series.
    constexpr float kLn2 = 0.693147181f, kUnit = 0x1p36f;
    const float series =
        __fmaf_rn(rest, __fmaf_rn(rest, kUnit * kLn2 * kLn2 * kLn2 / 6, kUnit * kLn2 * kLn2 / 2), kUnit * kLn2);
    const int correction = __float2int_rn(__fmul_rn(rest, series));
    const auto steps = static_cast<uint32_t>(__float_as_int(rounded));
    const uint64_t power = Table::at(powers, lane_offset, steps);
    int high = static_cast<int>(power >> 36);
#ifndef AETHER_EMULATED
    asm("" : "+r"(high));  // a product with a number known as positive takes two instructions more
#endif
    const uint64_t corrected = power + static_cast<uint64_t>(static_cast<int64_t>(high) * correction);
    return corrected >> ((steps >> kPowerBits) + static_cast<uint32_t>(shift));
  }

  // The definition of the operator's page in float64, for the comparison with min_p; slow.
  __device__ __forceinline__ double relative_weight(float logit, float temperature) const {
    return exp((static_cast<double>(logit) - static_cast<double>(largest)) / static_cast<double>(temperature));
  }
};

using SoftmaxWeights = WeightsBy<Powers>;
using FastWeights = WeightsBy<FastPowers>;

// The bits of weights whose sum over `size` logits is below 2^63.
__device__ __forceinline__ int weight_bits(int size) { return min(kMaxWeightBits, 31 + __clz(size)); }

// The sum over the lanes of a warp, of three parts of each number that are added by one instruction each.
__device__ __forceinline__ uint64_t warp_sum(uint64_t value) {
  constexpr int kPartBits = 22;
  constexpr unsigned kPart = (1u << kPartBits) - 1;
  const unsigned low = __reduce_add_sync(kFullWarp, static_cast<unsigned>(value) & kPart);
  const unsigned middle = __reduce_add_sync(kFullWarp, static_cast<unsigned>(value >> kPartBits) & kPart);
  const unsigned high = __reduce_add_sync(kFullWarp, static_cast<unsigned>(value >> (2 * kPartBits)));
  return (static_cast<uint64_t>(high) << (2 * kPartBits)) + (static_cast<uint64_t>(middle) << kPartBits) + low;
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

// The sum over the threads before this one, and the sum over all threads of a block.
struct PrefixSum {
  uint64_t before;
  uint64_t total;
};

// The sum over the lanes through this one.
__device__ __forceinline__ uint64_t warp_prefix_sum(uint64_t sum) {
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kFullWarp, static_cast<unsigned long long>(sum), distance);
    sum += lane_index() >= distance ? other : 0;
  }
  return sum;
}

__device__ __forceinline__ PrefixSum block_prefix_sum(uint64_t value) {
  __shared__ unsigned long long partial[kWarpSize];
  const uint64_t sum = warp_prefix_sum(value);
  __syncthreads();  // `partial` of an earlier call may still be read
  if (lane_index() == kWarpSize - 1) {
    partial[warp_index()] = sum;
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const uint64_t own = lane_index() < num_warps ? partial[lane_index()] : 0;
  const unsigned long long of_warps = warp_prefix_sum(own);
  const uint64_t before_warp = __shfl_sync(kFullWarp, of_warps - own, warp_index());
  return {before_warp + sum - value, __shfl_sync(kFullWarp, of_warps, kWarpSize - 1)};
}

// The smallest running sum that exceeds `fraction` of `total`; `fraction` is below 1.
__device__ __forceinline__ uint64_t target_beyond(double fraction, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(fraction * static_cast<double>(total)) + 1;
  return target < total ? target : total;
}

// The smallest running sum that is at least `fraction` of `total`.
__device__ __forceinline__ uint64_t target_reaching(double fraction, uint64_t total) {
  const uint64_t target = static_cast<uint64_t>(ceil(fraction * static_cast<double>(total)));
  return target < 1 ? 1 : (target < total ? target : total);
}

}  // namespace aether
