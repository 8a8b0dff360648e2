// The maxima of a row's segments, which row_summaries.cu computes: they give the row's maximum and a threshold for the
// candidates of top-k and top-p.
#pragma once

#include "common/row_order.cuh"

namespace aether {

constexpr int kSegmentUnit = 128;  // a segment is a multiple of this

// This lane's four of the 128 logits from `begin` on; -infinity beyond the end of the row.
__device__ __forceinline__ Vector<float> load_unit(const float* row, int begin, int size, bool is_aligned) {
  const int first = begin + lane_index() * Vector<float>::size;
  if (is_aligned && begin + kSegmentUnit <= size) {
    return Vector<float>::load(row + first);
  }
  Vector<float> four;
#pragma unroll
  for (int i = 0; i < Vector<float>::size; ++i) {
    four.values[i] = first + i < size ? row[first + i] : Max::kNeutral;
  }
  return four;
}

// The rank of the first segment with the largest maximum; every thread of a block gets it.
__device__ __forceinline__ uint64_t top_segment(const uint32_t* maxima, int num_segments) {
  uint64_t top = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
    const uint64_t rank = static_cast<uint64_t>(maxima[i]) << 32 | ~static_cast<uint32_t>(i);
    top = rank > top ? rank : top;
  }
  return block_largest(top);
}

// The smallest of the segments' maxima; every thread of a block gets it.
__device__ __forceinline__ float smallest_of_maxima(const uint32_t* maxima, int num_segments) {
  uint64_t last = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
    last = max(last, static_cast<uint64_t>(~maxima[i]));
  }
  return from_ordered_bits(~static_cast<uint32_t>(block_largest(last)));
}

// The rank of the first element of a row, which is in segment `begin / segment`; every thread of a block gets it.
__device__ __forceinline__ uint64_t top_rank_in_segment(const float* row, int size, int begin, int segment) {
  const int end = min(size, begin + segment);
  uint64_t top = 0;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    const uint64_t rank = rank_of(row[i], i);
    top = rank > top ? rank : top;
  }
  return block_largest(top);
}

}  // namespace aether
