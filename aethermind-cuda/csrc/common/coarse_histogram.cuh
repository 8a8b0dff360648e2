// A histogram of a row's logits by distance from the largest one, in bins of 1/64 nat: finds the bin in which a running
// sum over descending logits ends.
#pragma once

#include "common/radix_top_p.cuh"

namespace aether {

// Elements further than 2048 bins below the largest have no bin.
struct CoarseHistogram {
  static constexpr float kBinsPerNat = 64.0f;

  Histogram& histogram;
  float largest;
  float scale;

  __device__ __forceinline__ CoarseHistogram(Histogram& histogram, float largest, float temperature)
      : histogram(histogram), largest(largest), scale(kBinsPerNat / temperature) {}

  // The bin of a value, kBins without one. It is monotone in the value, as rounding is.
  __device__ __forceinline__ int bin(float value) const {
    const float distance = (largest - value) * scale;
    return distance < static_cast<float>(kBins) ? static_cast<int>(distance) : kBins;
  }

  // Fills the histogram from `weight_of(value, index)`; returns the sum of all weights, including those without a bin.
  template <class WeightOf>
  __device__ __forceinline__ uint64_t fill(const Row& row, const WeightOf& weight_of) {
    histogram.clear();
    __syncthreads();
    uint64_t total = 0;
    for_each_logit<kFewVectorsAhead>(row.logits, row.size, [&](float value, int index) {
      const uint64_t weight = weight_of(value, index);
      total += weight;
      const int value_bin = bin(value);
      if (value_bin < kBins) {
        histogram.add(value_bin, weight);
      }
    });
    return block_sum(total);  // includes a barrier
  }

  // Finds the bin in which the running sum reaches a target and the mass before it; -1 if there is none.
  template <class Measure>
  __device__ __forceinline__ FoundBin find(uint64_t target) const {
    return find_bin<Measure>(histogram, [](int i) { return i; }, Mass{0, 0}, target);
  }

  // The mass of all bins before this one.
  __device__ __forceinline__ Mass mass_before(int bin) const {
    Mass sum{0, 0};
    for (int i = static_cast<int>(threadIdx.x); i < bin; i += static_cast<int>(blockDim.x)) {
      sum = sum + histogram.mass(i);
    }
    return {block_sum(sum.count), block_sum(sum.weight)};
  }
};

}  // namespace aether
