// Inverse transform sampling of an untruncated row: the row is divided into 32 contiguous parts, and the part that
// contains the sampled position is subdivided.
#pragma once

#include "common/radix_top_p.cuh"

namespace aether {

constexpr int kParts = kWarpSize;

__device__ __forceinline__ int part_length(int begin, int end) { return (end - begin + kParts - 1) / kParts; }

// This thread's share of the mass of part `part` of row[begin … end - 1], computed by `num_threads` threads.
__device__ __forceinline__ uint64_t thread_mass_of_part(const float* row, int begin, int end, int part, int thread,
                                                        int num_threads, const SoftmaxWeights& softmax) {
  const int length = part_length(begin, end);
  const int first = min(end, begin + part * length), last = min(end, first + length);
  uint64_t sum = 0;
  for_each_logit<kFewVectorsAhead>(row, first, last, thread, num_threads,
                                   [&](float value, int) { sum += softmax.weight(value); });
  return sum;
}

__device__ __forceinline__ uint64_t sum_of_parts(const unsigned long long* parts) {
  uint64_t total = 0;
  for (int part = 0; part < kParts; ++part) {
    total += parts[part];
  }
  return total;
}

// The first index at which the running mass by ascending index exceeds `random` times the total; the part that contains
// it is subdivided. `totals` are the masses of the row's parts, or null.
__device__ __forceinline__ int sample_untruncated(const Row& row, const unsigned long long* totals,
                                                  const SoftmaxWeights& softmax, double random) {
  __shared__ unsigned long long parts[kParts];
  int begin = 0, end = row.size;
  uint64_t before = 0, target = 0;
  while (true) {
    const int length = part_length(begin, end);
    for (int part = warp_index(); part < kParts; part += static_cast<int>(blockDim.x) / kWarpSize) {
      const uint64_t sum =
          target == 0 && totals != nullptr
              ? totals[part]
              : warp_sum(thread_mass_of_part(row.logits, begin, end, part, lane_index(), kWarpSize, softmax));
      if (lane_index() == 0) {
        parts[part] = sum;
      }
    }
    __syncthreads();
    if (target == 0) {
      target = target_beyond(random, sum_of_parts(parts));
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
