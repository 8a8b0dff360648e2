// The online softmax of FlashAttention-2 (Dao 2023) for the transposed scores of the decode kernel: a warp's share of
// 8 query rows per tile (see common/decode_operands.cuh).
#pragma once

#include "common/decode_operands.cuh"

namespace aether {

// State of rows 2i and 2i + 1 of each tile, where lane = 4 g + i.
template <int kHeadDim, int kTiles>
struct DecodeSoftmax {
  float out[kTiles][kHeadDim / 16][4] = {};
  // The score that weights are relative to, as in `SoftmaxRows`. After `finish`, scaled to a power of two.
  float base[kTiles][2];
  float sum[kTiles][2];  // of this thread's keys only, until `finish`

  __device__ __forceinline__ DecodeSoftmax() {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) base[i / 2][i % 2] = kMinusInfinity, sum[i / 2][i % 2] = 0.0f;
  }

  // Turns scores into weights 2^(scale (score - base)).
  __device__ __forceinline__ void update(float (&scores)[kTiles][4], float scale) {
    constexpr float kRescaleThreshold = 8.0f;
    float row_max[kTiles][2];
    bool needs_rescale = false;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int tile = i / 2, r = i % 2;
      float largest = fmaxf(base[tile][r], fmaxf(scores[tile][r], scores[tile][r + 2]));
#pragma unroll
      for (int distance = 4; distance < kWarpSize; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, distance));
      }
      row_max[tile][r] = largest;
      needs_rescale |= (largest - base[tile][r]) * scale > kRescaleThreshold;  // false before the first visible key
    }
    if (__any_sync(kFullWarp, needs_rescale)) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int tile = i / 2, r = i % 2;
        const float largest = row_max[tile][r];
        const float rescale = largest == kMinusInfinity ? 0.0f : fast_exp2((base[tile][r] - largest) * scale);
        base[tile][r] = largest;
        sum[tile][r] *= rescale;
#pragma unroll
        for (int n = 0; n < kHeadDim / 16; ++n) {
          out[tile][n][r] *= rescale;
          out[tile][n][r + 2] *= rescale;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int tile = i / 2, r = i % 2;
      const float power = base[tile][r] == kMinusInfinity ? 0.0f : base[tile][r] * scale;
      scores[tile][r] = fast_exp2(fmaf(scores[tile][r], scale, -power));
      scores[tile][r + 2] = fast_exp2(fmaf(scores[tile][r + 2], scale, -power));
      sum[tile][r] += scores[tile][r] + scores[tile][r + 2];
    }
  }

  // out += weights · values. Weights are rounded to T.
  template <class T, class Operands>
  __device__ __forceinline__ void add_values(const float (&weights)[kTiles][4],
                                             const typename Operands::Element* values) {
    uint32_t b[kTiles][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      b[tile][0] = transposed(packed<T>(weights[tile][0], weights[tile][1]));
      b[tile][1] = transposed(packed<T>(weights[tile][2], weights[tile][3]));
    }
    const typename Operands::Values read(values);
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
      uint32_t a[4];
      read.load(a, n);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply_add<T>(out[tile][n], a, b[tile][0], b[tile][1]);
    }
  }

  __device__ __forceinline__ void finish(float scale) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int tile = i / 2, r = i % 2;
#pragma unroll
      for (int distance = 4; distance < kWarpSize; distance *= 2) {
        sum[tile][r] += __shfl_xor_sync(kFullWarp, sum[tile][r], distance);
      }
      base[tile][r] *= scale;
    }
  }
};

}  // namespace aether
