// Attention of one query of one head without tensor cores, by online softmax in float32, for any head_dim up to 256.
// The result depends on nothing but this query and its keys (batch invariance).
#pragma once

#include "common/attention_call.cuh"
#include "common/reduce.cuh"

namespace aether {

constexpr int kRowWarps = 4;
constexpr int kMaxRowHeadDim = 256;

// A warp processes 32 keys at a time: one lane per key for scores, then one lane per 32nd element for values.
// `row_of(key)` is the cache row of a key and its value, `k_at(row, i)` and `v_at(row, i)` are their elements,
// `k_factor(row)` and `v_factor(row)` their scales, and `exponent_of(key, x)` the exponent of 2 of a key's weight, of
// the product x = scale · log2(e) · q · k. 2^sink_exponent is added to the sum of weights. Without keys the result is
// zeros.
template <class T, class RowOf, class KAt, class VAt, class KFactor, class VFactor, class ExponentOf>
__device__ __forceinline__ void attend_row(T* out, const T* q, int head_dim, KeyRange keys, float scale, RowOf row_of,
                                           KAt k_at, VAt v_at, KFactor k_factor, VFactor v_factor,
                                           ExponentOf exponent_of, float sink_exponent) {
  constexpr int kPerLane = kMaxRowHeadDim / kWarpSize;
  __shared__ float query[kMaxRowHeadDim];
  __shared__ float sums[kRowWarps][kMaxRowHeadDim];
  __shared__ float warp_maxima[kRowWarps], warp_weights[kRowWarps];
  const int lane = lane_index();
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += kRowWarps * kWarpSize) query[i] = to_float(q[i]);
  __syncthreads();

  float running_max = -__builtin_huge_valf(), weights = 0.0f, sum[kPerLane] = {};
  for (int first = keys.begin + warp_index() * kWarpSize; first < keys.end; first += kRowWarps * kWarpSize) {
    const int count = min(kWarpSize, keys.end - first);
    const int64_t row = row_of(first + min(lane, count - 1));
    float score = -__builtin_huge_valf();
    if (lane < count) {
      score = 0.0f;
      for (int i = 0; i < head_dim; ++i) score += query[i] * k_at(row, i);
      score = exponent_of(first + lane, score * (scale * 1.44269504f * k_factor(row)));
    }
    const float row_max = fmaxf(running_max, warp_reduce<Max>(score));
    const float rescale = exp2f(running_max - row_max), weight = exp2f(score - row_max);
    running_max = row_max;
    weights = weights * rescale + warp_reduce<Sum>(weight);
    const float factor = weight * v_factor(row);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum[i] *= rescale;
    for (int key = 0; key < count; ++key) {
      const int64_t row_of_key = __shfl_sync(kFullWarp, row, key);
      const float weight_of_key = __shfl_sync(kFullWarp, factor, key);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int dim = lane + i * kWarpSize;
        if (dim < head_dim) sum[i] += weight_of_key * v_at(row_of_key, dim);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sums[warp_index()][lane + i * kWarpSize] = sum[i];
  if (lane == 0) {
    warp_maxima[warp_index()] = running_max;
    warp_weights[warp_index()] = weights;
  }
  __syncthreads();

  float row_max = warp_maxima[0], total = 0.0f, rescales[kRowWarps];
#pragma unroll
  for (int warp = 1; warp < kRowWarps; ++warp) row_max = fmaxf(row_max, warp_maxima[warp]);
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) {
    rescales[warp] = warp_weights[warp] > 0.0f ? exp2f(warp_maxima[warp] - row_max) : 0.0f;
    total += rescales[warp] * warp_weights[warp];
  }
  total += exp2f(sink_exponent - row_max);
  const float inverse = keys.begin < keys.end ? 1.0f / total : 0.0f;
  for (int dim = static_cast<int>(threadIdx.x); dim < head_dim; dim += kRowWarps * kWarpSize) {
    float value = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kRowWarps; ++warp) value += rescales[warp] * sums[warp][dim];
    out[dim] = from_float<T>(value * inverse);
  }
}

}  // namespace aether
