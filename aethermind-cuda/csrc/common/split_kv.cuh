// Split-KV attention (Flash-Decoding, Dao et al. 2023): how the keys of queries are split among blocks, and how the
// combine kernel merges the partials that those blocks write to the workspace.
#pragma once

#include "common/attention_call.cuh"
#include "common/attention_tile.cuh"
#include "common/reduce.cuh"

namespace aether {

constexpr int kSplitGranularity = 64;      // splits are multiples of this, except the last one
constexpr int kMinPrefillSplitKeys = 256;  // prefill kernel
constexpr int kMinDecodeSplitKeys = 128;   // decode kernel: 16 keys per warp

// Splits of equal length. They depend on the device's sequence lengths, because a captured graph's grid is fixed
// while lengths vary.
struct KvSplits {
  KeyRange keys;
  int length;
  int count;

  // At most `num_splits` splits of at least kMinDecodeSplitKeys keys.
  __device__ __forceinline__ KvSplits(KeyRange keys, int num_splits) : keys(keys) {
    const int total = keys.end - keys.begin;
    length = total;
    count = 1;
    if (num_splits == 1) return;
    const int even = (total + num_splits - 1) / num_splits;
    length = max(kMinDecodeSplitKeys, (even + kSplitGranularity - 1) / kSplitGranularity * kSplitGranularity);
    count = (total + length - 1) / length;
  }

  __device__ __forceinline__ KeyRange split(int index) const {
    const int begin = keys.begin + index * length;
    return {begin, min(keys.end, begin + length)};
  }
};

// The partial result of a split: kRows rows of kHeadDim accumulators, then their exponents, then the sums of weights.
template <int kRows, int kHeadDim>
struct SplitPartial {
  static constexpr int kSize = kRows * (kHeadDim + 2);
  float* values;

  __device__ __forceinline__ SplitPartial(float* partials, int64_t index) : values(partials + index * kSize) {}

  __device__ __forceinline__ float* out(int row) const { return values + row * kHeadDim; }
  __device__ __forceinline__ float& max_exponent(int row) const { return values[kRows * kHeadDim + row]; }
  __device__ __forceinline__ float& sum(int row) const { return values[kRows * (kHeadDim + 1) + row]; }
};

// Merges `count` consecutive partials into one output row, by one warp or by kWarps warps that share the partials
// (then all threads of a block call it). The row's sink adds 2^sink_exponent to the sum of weights. A lane has four
// consecutive elements from `first_dim` on; eight partials are loaded at a time to hide latency.
template <class T, int kRows, int kHeadDim, int kWarps = 1>
__device__ __forceinline__ void combine_row(T* target, int head_dim, float* partials, int64_t first, int count, int row,
                                            float sink_exponent, int first_dim = 0) {
  constexpr int kBatch = 8;
  const auto partial = [&](int split) { return SplitPartial<kRows, kHeadDim>(partials, first + split); };
  const int lane = lane_index(), dim = first_dim + lane * 4, warp = kWarps == 1 ? 0 : warp_index();
  float4 loaded[kBatch];
  const auto load_partials = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = begin + i * kWarps;
      loaded[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (split < count && dim < kHeadDim) {
        loaded[i] = *reinterpret_cast<const float4*>(partial(split).out(row) + dim);
      }
    }
  };
  load_partials(warp);  // overlaps the reads of exponents
  float row_max = kMinusInfinity;
  for (int split = lane; split < count; split += kWarpSize) row_max = fmaxf(row_max, partial(split).max_exponent(row));
  row_max = warp_reduce<Max>(row_max);
  float sum = 0.0f, out[4] = {};
  for (int base = warp; base < count; base += kWarpSize * kWarps) {
    float rescale = 0.0f;  // of this lane's partial; 0 where a window masks the whole split
    const int split = base + lane * kWarps;
    if (split < count) {
      rescale = fast_exp2(partial(split).max_exponent(row) - row_max);
      sum += rescale * partial(split).sum(row);
    }
    for (int batch = 0; batch < kWarpSize && base + batch * kWarps < count; batch += kBatch) {
      if (base + batch > warp) load_partials(base + batch * kWarps);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = __shfl_sync(kFullWarp, rescale, batch + i);
        out[0] += weight * loaded[i].x;
        out[1] += weight * loaded[i].y;
        out[2] += weight * loaded[i].z;
        out[3] += weight * loaded[i].w;
      }
    }
  }
  sum = warp_reduce<Sum>(sum);
  if constexpr (kWarps > 1) {
    __shared__ float4 outs[kWarps][kWarpSize];
    __shared__ float sums[kWarps];
    outs[warp][lane] = {out[0], out[1], out[2], out[3]};
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < kWarps; ++other) {
      sum += sums[other];
      out[0] += outs[other][lane].x;
      out[1] += outs[other][lane].y;
      out[2] += outs[other][lane].z;
      out[3] += outs[other][lane].w;
    }
  }
  const float inverse = 1.0f / (sum + fast_exp2(sink_exponent - row_max));
  if (dim < head_dim) {
    const uint2 four{packed<T>(out[0] * inverse, out[1] * inverse), packed<T>(out[2] * inverse, out[3] * inverse)};
    *reinterpret_cast<uint2*>(target + dim) = four;
  }
}

}  // namespace aether
