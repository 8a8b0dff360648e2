// How the keys of some queries are split among the blocks that attend to them at the same time, and how the combine
// kernel merges what those blocks leave in the workspace.
#pragma once

#include "common/attention_call.cuh"
#include "common/attention_tile.cuh"
#include "common/reduce.cuh"

namespace aether {

constexpr int kSplitUnit = 64;  // parts are whole units long, but for the last one
constexpr int kShortestSplit = 256;

// Keys in parts of equal length. Queries are split by their own number of keys: a grid is as it was captured, lengths
// are not.
struct Splits {
  KeyRange keys;
  int length;
  int count;

  // At most `num_splits` parts, of kShortestSplit keys at least.
  __device__ __forceinline__ Splits(KeyRange keys, int num_splits) : keys(keys) {
    const int total = keys.end - keys.begin;
    const int even = (total + num_splits - 1) / num_splits;
    length = max(kShortestSplit, (even + kSplitUnit - 1) / kSplitUnit * kSplitUnit);
    count = (total + length - 1) / length;
  }

  __device__ __forceinline__ KeyRange part(int index) const {
    const int begin = keys.begin + index * length;
    return {begin, min(keys.end, begin + length)};
  }
};

// What a block leaves of its part: kRows rows of kHeadDim sums, then the powers of two that they are relative to, then
// sums of weights.
template <int kRows, int kHeadDim>
struct Partial {
  static constexpr int kSize = kRows * (kHeadDim + 2);
  float* values;

  __device__ __forceinline__ Partial(float* partials, int64_t index) : values(partials + index * kSize) {}

  __device__ __forceinline__ float* out(int row) const { return values + row * kHeadDim; }
  __device__ __forceinline__ float& power(int row) const { return values[kRows * kHeadDim + row]; }
  __device__ __forceinline__ float& sum(int row) const { return values[kRows * (kHeadDim + 1) + row]; }
};

// One row of the output from `count` partials that follow each other, by a warp. A lane has four neighbouring elements;
// eight partials are read at a time, because the loads' latency is most of the work.
template <class T, int kRows, int kHeadDim>
__device__ __forceinline__ void combine_row(T* target, int head_dim, float* partials, int64_t first, int count,
                                            int row) {
  constexpr int kBatch = 8;
  const auto partial = [&](int split) { return Partial<kRows, kHeadDim>(partials, first + split); };
  const int lane = lane_index(), dim = lane * 4;
  float most = kMinusInfinity;
  for (int split = lane; split < count; split += kWarpSize) most = fmaxf(most, partial(split).power(row));
  most = warp_reduce<Max>(most);
  float sum = 0.0f, out[4] = {};
  for (int base = 0; base < count; base += kWarpSize) {
    float share = 0.0f;  // of this lane's partial; 0 where a window hides the whole part
    if (base + lane < count) {
      share = fast_exp2(partial(base + lane).power(row) - most);
      sum += share * partial(base + lane).sum(row);
    }
    const int end = min(count - base, kWarpSize);
    for (int batch = 0; batch < end; batch += kBatch) {
      float4 read[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        read[i] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (batch + i < end && dim < kHeadDim) {
          read[i] = *reinterpret_cast<const float4*>(partial(base + batch + i).out(row) + dim);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = __shfl_sync(kFullWarp, share, batch + i);
        out[0] += weight * read[i].x;
        out[1] += weight * read[i].y;
        out[2] += weight * read[i].z;
        out[3] += weight * read[i].w;
      }
    }
  }
  const float inverse = 1.0f / warp_reduce<Sum>(sum);
  if (dim < head_dim) {
    const uint2 four{packed<T>(out[0] * inverse, out[1] * inverse), packed<T>(out[2] * inverse, out[3] * inverse)};
    *reinterpret_cast<uint2*>(target + dim) = four;
  }
}

}  // namespace aether
