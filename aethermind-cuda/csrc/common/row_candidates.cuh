// The first elements of a row, gathered without sorting it: a coarse histogram over the distance from the largest one
// tells how far down they lie.
#pragma once

#include "common/row_descent.cuh"

namespace aether {

// A row in 2048 bins of 1/64 nat each below the largest logit; what lies further down has no bin.
struct CoarseHistogram {
  static constexpr float kBinsPerNat = 64.0f;

  Histogram& histogram;
  float largest;
  float scale;

  __device__ __forceinline__ CoarseHistogram(Histogram& histogram, float largest, float temperature)
      : histogram(histogram), largest(largest), scale(kBinsPerNat / temperature) {}

  // kBins for an element without a bin. Falls with the value, as rounding is monotone.
  __device__ __forceinline__ int bin(float value) const {
    const float distance = (largest - value) * scale;
    return distance < static_cast<float>(kBins) ? static_cast<int>(distance) : kBins;
  }

  // Fills it; the sum of all weights, those without a bin included, in every thread.
  __device__ __forceinline__ uint64_t fill(const Row& row, const Weighing& weighing) {
    histogram.clear();
    __syncthreads();
    uint64_t total = 0;
    row.for_each([&](uint64_t rank) {
      const float value = value_of(rank);
      const uint64_t weight = weighing.weight(value);
      total += weight;
      const int own = bin(value);
      if (own < kBins) {
        histogram.add(own, weight);
      }
    });
    return block_sum(total);  // and a barrier
  }

  // The bin in which the running sum reaches a target, or kBins.
  template <class Measure>
  __device__ __forceinline__ int reach(uint64_t target) const {
    const Found found = find_bin<Measure>(histogram, [](int i) { return i; }, Mass{0, 0}, target);
    return found.bin < 0 ? kBins : found.bin;
  }
};

// Puts the ranks of all elements in bins up to `last_bin` into `candidates`, and returns the row made of them; where
// they have no bin or are too many, returns the row as it is.
__device__ __forceinline__ Row gathered(const Row& row, const CoarseHistogram& coarse, int last_bin,
                                        unsigned long long* candidates) {
  __shared__ int num_candidates;
  if (last_bin >= kBins) {
    return row;
  }
  uint64_t count = 0;
  for (int i = static_cast<int>(threadIdx.x); i <= last_bin; i += static_cast<int>(blockDim.x)) {
    count += coarse.histogram.counts[i];
  }
  if (block_sum(count) > kMostCandidates) {
    return row;
  }
  if (threadIdx.x == 0) {
    num_candidates = 0;
  }
  __syncthreads();
  row.for_each([&](uint64_t rank) {
    if (coarse.bin(value_of(rank)) <= last_bin) {
      candidates[atomicAdd(&num_candidates, 1)] = rank;
    }
  });
  __syncthreads();
  return {row.logits, row.size, candidates, num_candidates};
}

}  // namespace aether
