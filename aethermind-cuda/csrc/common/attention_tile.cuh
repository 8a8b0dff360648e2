// The inner loop of FlashAttention-2 (Dao 2023) in the registers of a warp: scores = Q · Kᵀ, online softmax, out += P ·
// V, for tiles of 16 query rows with mma.m16n8k16 (float16 or bfloat16, accumulated in float32).
//
// Rows of queries, keys and values in shared memory are padded to an odd number of 16-byte pieces. So the eight rows
// that a phase of ldmatrix reads lie in different banks, for every head_dim, without a swizzle.
#pragma once

#include "common/attention_call.cuh"
#include "common/fast_math.cuh"
#include "common/mma.cuh"
#include "common/types.cuh"

namespace aether {

constexpr float kMinusInfinity = -__builtin_huge_valf();

// Row stride in shared memory, in elements.
template <int kHeadDim>
constexpr int kRowStride = kHeadDim + 8;

// scores[m][n] += the 16 x 8 products of the m-th 16 queries with keys 8n … 8n + 7, at elements dim … dim + 15.
template <class T, int kHeadDim, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void add_scores(float (&scores)[kRowTiles][kKeyTiles][4], const uint32_t (&q)[kRowTiles][4],
                                           const T* keys, int dim) {
  const int lane = lane_index();
  const T* lane_source = keys + (lane % 8 + lane / 16 * 8) * kRowStride<kHeadDim> + dim + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    uint32_t b[4];
    load_matrices(b, lane_source + n * 8 * kRowStride<kHeadDim>);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      multiply_add<T>(scores[m][n], q[m], b[0], b[1]);
      multiply_add<T>(scores[m][n + 1], q[m], b[2], b[3]);
    }
  }
}

// Loads the A fragment of queries 0 … 15 at elements dim … dim + 15.
template <class T, int kHeadDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[4], const T* queries, int dim) {
  const int lane = lane_index();
  load_matrices(q, queries + lane % 16 * kRowStride<kHeadDim> + dim + lane / 16 * 8);
}

// XOR with this negates two packed elements of T, for a negative scale.
__device__ __forceinline__ uint32_t query_sign(float scale) { return scale < 0.0f ? 0x80008000u : 0u; }

// Online softmax of 16 rows: this thread's share of rows g and g + 8, where lane = 4 g + i.
template <int kHeadDim>
struct SoftmaxRows {
  float out[kHeadDim / 8][4] = {};
  // The score that weights are relative to: the running maximum or slightly less. After `finish`, scaled to a power of
  // two.
  float base[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};  // of this thread's columns only, until `finish`

  // Turns scores into weights 2^(scale (score - base)). The base is raised to the maximum, and sums are rescaled, only
  // where a weight would exceed 2^8; below that, results are as exact, and rescaling is rare after the first keys.
  template <int kTiles>
  __device__ __forceinline__ void update(float (&scores)[kTiles][4], float scale) {
    constexpr float kRescaleThreshold = 8.0f;
    float row_max[2];
    bool needs_rescale = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_max[r] = base[r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) row_max[r] = fmaxf(row_max[r], fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      row_max[r] = fmaxf(row_max[r], __shfl_xor_sync(kFullWarp, row_max[r], 1));
      row_max[r] = fmaxf(row_max[r], __shfl_xor_sync(kFullWarp, row_max[r], 2));
      needs_rescale |= (row_max[r] - base[r]) * scale > kRescaleThreshold;  // false before the first visible key
    }
    if (__any_sync(kFullWarp, needs_rescale)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float rescale = row_max[r] == kMinusInfinity ? 0.0f : fast_exp2((base[r] - row_max[r]) * scale);
        base[r] = row_max[r];
        sum[r] *= rescale;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          out[n][2 * r] *= rescale;
          out[n][2 * r + 1] *= rescale;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float power = base[r] == kMinusInfinity ? 0.0f : base[r] * scale;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        scores[n][2 * r] = fast_exp2(fmaf(scores[n][2 * r], scale, -power));
        scores[n][2 * r + 1] = fast_exp2(fmaf(scores[n][2 * r + 1], scale, -power));
        sum[r] += scores[n][2 * r] + scores[n][2 * r + 1];
      }
    }
  }

  __device__ __forceinline__ void finish(float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 1);
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 2);
      base[r] *= scale;
    }
  }
};

// out[m] += weights[m] · values. Weights are rounded to T; the C fragment of scores has the layout of an A fragment.
template <class T, int kHeadDim, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void add_values(SoftmaxRows<kHeadDim> (&rows)[kRowTiles],
                                           const float (&weights)[kRowTiles][kKeyTiles][4], const T* values) {
  const int lane = lane_index();
  const T* lane_source = values + lane % 16 * kRowStride<kHeadDim> + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kKeyTiles; k += 2) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&pair)[4] = weights[m][k + i / 2];
        a[m][i] = packed<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b, lane_source + k * 8 * kRowStride<kHeadDim> + n * 8);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add<T>(rows[m].out[n], a[m], b[0], b[1]);
        multiply_add<T>(rows[m].out[n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace aether
