// A row in bins of 1/64 nat by how far elements are below the largest: which of them a running sum ends in.
#pragma once

#include "common/radix_top_p.cuh"

namespace aether {

// What lies further down than 2048 bins reach has no bin.
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

  // Fills it; the sum of all weights, those without a bin included, in every thread. `weight_of(value, index)`.
  template <class WeightOf>
  __device__ __forceinline__ uint64_t fill(const Row& row, const WeightOf& weight_of) {
    histogram.clear();
    __syncthreads();
    uint64_t total = 0;
    for_each_logit<kFewVectorsAhead>(row.logits, row.size, [&](float value, int index) {
      const uint64_t weight = weight_of(value, index);
      total += weight;
      const int own = bin(value);
      if (own < kBins) {
        histogram.add(own, weight);
      }
    });
    return block_sum(total);  // and a barrier
  }

  // The bin in which the running sum reaches a target, and the mass of those before it; -1 where none does.
  template <class Measure>
  __device__ __forceinline__ Found find(uint64_t target) const {
    return find_bin<Measure>(histogram, [](int i) { return i; }, Mass{0, 0}, target);
  }

  // The mass of all bins before one, in every thread.
  __device__ __forceinline__ Mass mass_before(int bin) const {
    Mass sum{0, 0};
    for (int i = static_cast<int>(threadIdx.x); i < bin; i += static_cast<int>(blockDim.x)) {
      sum = sum + histogram.mass(i);
    }
    return {block_sum(sum.count), block_sum(sum.weight)};
  }
};

}  // namespace aether
