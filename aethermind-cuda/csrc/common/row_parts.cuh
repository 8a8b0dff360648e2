// A row in 32 parts of neighbouring elements, and what each of them weighs.
#pragma once

#include "common/radix_top_p.cuh"

namespace aether {

constexpr int kParts = kWarpSize;

__device__ __forceinline__ int part_length(int begin, int end) { return (end - begin + kParts - 1) / kParts; }

// What part `part` of row[begin … end - 1] weighs, by `num_threads` threads, each of which has a share of the sum.
__device__ __forceinline__ uint64_t share_of_part(const float* row, int begin, int end, int part, int thread,
                                                  int num_threads, const Weighing& weighing) {
  const int length = part_length(begin, end);
  const int first = min(end, begin + part * length), last = min(end, first + length);
  uint64_t sum = 0;
  for_each_logit<kFewVectorsAhead>(row, first, last, thread, num_threads,
                                   [&](float value, int) { sum += weighing.weight(value); });
  return sum;
}

__device__ __forceinline__ uint64_t sum_of_parts(const unsigned long long* parts) {
  uint64_t total = 0;
  for (int part = 0; part < kParts; ++part) {
    total += parts[part];
  }
  return total;
}

// The first index at which the running sum in the order of indices exceeds `share` of the total: the part that holds it
// is divided again. `totals` are the weights of the row's parts, or null.
__device__ __forceinline__ int sample_uncut(const Row& row, const unsigned long long* totals, const Weighing& weighing,
                                            double share) {
  __shared__ unsigned long long parts[kParts];
  int begin = 0, end = row.size;
  uint64_t before = 0, target = 0;
  while (true) {
    const int length = part_length(begin, end);
    for (int part = warp_index(); part < kParts; part += static_cast<int>(blockDim.x) / kWarpSize) {
      const uint64_t sum =
          target == 0 && totals != nullptr
              ? totals[part]
              : warp_sum(share_of_part(row.logits, begin, end, part, lane_index(), kWarpSize, weighing));
      if (lane_index() == 0) {
        parts[part] = sum;
      }
    }
    __syncthreads();
    if (target == 0) {
      target = target_beyond(share, sum_of_parts(parts));
    }
    int chosen = 0;
    while (chosen < kParts - 1 && before + parts[chosen] < target) {
      before += parts[chosen++];
    }
    __syncthreads();
    begin += chosen * length;
    end = min(end, begin + length);
    if (length == 1) {
      return begin;
    }
  }
}

}  // namespace aether
