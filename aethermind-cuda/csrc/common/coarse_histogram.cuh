// A histogram of a row's logits by distance from the largest one.
#pragma once

#include "common/radix_top_p.cuh"

namespace aether {

// Elements further than 2048 bins below the largest have no bin.
struct CoarseHistogram {
  Histogram& histogram;
  float largest;
  float scale;  // bins per unit of a logit

  __device__ __forceinline__ CoarseHistogram(Histogram& histogram, float largest, float scale)
      : histogram(histogram), largest(largest), scale(scale) {}

  // Bins between a value and the largest one; monotone in the value, as rounding is.
  __device__ __forceinline__ float position(float value) const { return (largest - value) * scale; }

  // Counts the elements of each bin, and calls `other(position)` for each of them.
  template <class Other>
  __device__ __forceinline__ void fill(const Row& row, const Other& other) const {
    histogram.clear();
    __syncthreads();
    for_each_logit<kPrefetchVectors>(row.logits, row.size, [&](float value, int) {
      const float distance = position(value);
      if (distance < static_cast<float>(kBins)) {
        atomicAdd(&histogram.counts[Histogram::padded_bin(static_cast<int>(distance))], 1u);
        other(distance);
      }
    });
    __syncthreads();
  }
};

}  // namespace aether
