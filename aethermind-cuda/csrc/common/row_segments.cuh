// The maxima of a row's segments, computed by many blocks: they give the row's maximum and a threshold for the
// candidates of top-k and top-p.
#pragma once

#include "common/row_order.cuh"

namespace aether {

constexpr int kSegmentUnit = 128;  // a segment is a multiple of this
constexpr int kSegmentsPerWarp = 4;

// Ordered bits of the largest of this lane's four of the 128 elements from `begin` on; 0 if there is none.
__device__ __forceinline__ uint32_t largest_of_four(const float* row, int begin, int size, bool is_aligned) {
  uint32_t largest = 0;
  if (is_aligned && begin + kSegmentUnit <= size) {
    const auto four = Vector<float>::load(row + begin + lane_index() * Vector<float>::size);
#pragma unroll
    for (int i = 0; i < Vector<float>::size; ++i) {
      largest = max(largest, ordered_bits(four.values[i]));
    }
    return largest;
  }
#pragma unroll
  for (int i = 0; i < kSegmentUnit / kWarpSize; ++i) {
    const int index = begin + i * kWarpSize + lane_index();
    largest = max(largest, index < size ? ordered_bits(row[index]) : 0);
  }
  return largest;
}

// Writes maxima[rows][num_segments] of row blockIdx.x as ordered bits; a warp computes four segments.
__device__ __forceinline__ void write_segment_maxima(uint32_t* maxima, const float* logits, int size, int segment,
                                                     int num_segments) {
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * size;
  const bool is_aligned = is_vectorizable(row, 0);
  const int warp = static_cast<int>(blockIdx.y * (blockDim.x / kWarpSize)) + warp_index();
  uint32_t largest[kSegmentsPerWarp] = {};
  for (int unit = 0; unit < segment; unit += kSegmentUnit) {
#pragma unroll
    for (int i = 0; i < kSegmentsPerWarp; ++i) {
      const int64_t begin = static_cast<int64_t>(warp * kSegmentsPerWarp + i) * segment + unit;
      largest[i] =
          begin < size ? max(largest[i], largest_of_four(row, static_cast<int>(begin), size, is_aligned)) : largest[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kSegmentsPerWarp; ++i) {
    const uint32_t result = __reduce_max_sync(kFullWarp, largest[i]);
    const int index = warp * kSegmentsPerWarp + i;
    if (lane_index() == 0 && index < num_segments) {
      maxima[static_cast<int64_t>(blockIdx.x) * num_segments + index] = result;
    }
  }
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

__device__ __forceinline__ float largest_of_maxima(const uint32_t* maxima, int num_segments) {
  return value_of(top_segment(maxima, num_segments));
}

// The rank of the first element of a row; every thread of a block gets it.
__device__ __forceinline__ uint64_t top_rank_by_maxima(const float* row, int size, const uint32_t* maxima, int segment,
                                                       int num_segments) {
  const int begin = index_of(top_segment(maxima, num_segments)) * segment, end = min(size, begin + segment);
  uint64_t top = 0;
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    const uint64_t rank = rank_of(row[i], i);
    top = rank > top ? rank : top;
  }
  return block_largest(top);
}

}  // namespace aether
