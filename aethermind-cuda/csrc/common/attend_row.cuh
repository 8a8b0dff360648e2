// Attention of one query of one head without tensor cores: float32 throughout, any head_dim up to 256, and a result
// that depends on nothing but this query and its keys.
#pragma once

#include "common/attention_call.cuh"
#include "common/reduce.cuh"

namespace aether {

constexpr int kRowWarps = 4;
constexpr int kMaxAttendedDim = 256;

// A warp processes 32 keys at a time: one lane per key for scores, then one lane per 32nd element for values.
// `row_of(key)` is the cache row of a key and its value, `k_at(row, i)` and `v_at(row, i)` are their elements,
// `k_factor(row)` and `v_factor(row)` their scales. Without keys the result is zeros.
template <class T, class RowOf, class KAt, class VAt, class KFactor, class VFactor>
__device__ __forceinline__ void attend_row(T* out, const T* q, int head_dim, KeyRange keys, float scale, RowOf row_of,
                                           KAt k_at, VAt v_at, KFactor k_factor, VFactor v_factor) {
  constexpr int kPerLane = kMaxAttendedDim / kWarpSize;
  __shared__ float query[kMaxAttendedDim];
  __shared__ float sums[kRowWarps][kMaxAttendedDim];
  __shared__ float largest_of[kRowWarps], weights_of[kRowWarps];
  const int lane = lane_index();
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += kRowWarps * kWarpSize) query[i] = to_float(q[i]);
  __syncthreads();

  float largest = -__builtin_huge_valf(), weights = 0.0f, sum[kPerLane] = {};
  for (int first = keys.begin + warp_index() * kWarpSize; first < keys.end; first += kRowWarps * kWarpSize) {
    const int count = min(kWarpSize, keys.end - first);
    const int64_t row = row_of(first + min(lane, count - 1));
    float score = -__builtin_huge_valf();
    if (lane < count) {
      score = 0.0f;
      for (int i = 0; i < head_dim; ++i) score += query[i] * k_at(row, i);
      score *= scale * 1.44269504f * k_factor(row);
    }
    const float most = fmaxf(largest, warp_reduce<Max>(score));
    const float shrink = exp2f(largest - most), weight = exp2f(score - most);
    largest = most;
    weights = weights * shrink + warp_reduce<Sum>(weight);
    const float factor = weight * v_factor(row);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum[i] *= shrink;
    for (int key = 0; key < count; ++key) {
      const int64_t of_key = __shfl_sync(kFullWarp, row, key);
      const float share = __shfl_sync(kFullWarp, factor, key);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int dim = lane + i * kWarpSize;
        if (dim < head_dim) sum[i] += share * v_at(of_key, dim);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sums[warp_index()][lane + i * kWarpSize] = sum[i];
  if (lane == 0) {
    largest_of[warp_index()] = largest;
    weights_of[warp_index()] = weights;
  }
  __syncthreads();

  float most = largest_of[0], total = 0.0f, share[kRowWarps];
#pragma unroll
  for (int warp = 1; warp < kRowWarps; ++warp) most = fmaxf(most, largest_of[warp]);
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp) {
    share[warp] = weights_of[warp] > 0.0f ? exp2f(largest_of[warp] - most) : 0.0f;
    total += share[warp] * weights_of[warp];
  }
  const float inverse = keys.begin < keys.end ? 1.0f / total : 0.0f;
  for (int dim = static_cast<int>(threadIdx.x); dim < head_dim; dim += kRowWarps * kWarpSize) {
    float value = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kRowWarps; ++warp) value += share[warp] * sums[warp][dim];
    out[dim] = from_float<T>(value * inverse);
  }
}

}  // namespace aether
