// One step of FlashAttention-2 (Dao 2023) in the registers of a warp: 16 rows of queries against some keys.
//
// Rows of queries, keys and values in shared memory are padded to an odd number of 16-byte pieces. So the eight rows
// that a phase of ldmatrix reads lie in different banks, for every head_dim, without a swizzle.
#pragma once

#include "common/mma.cuh"
#include "common/types.cuh"

namespace aether {

constexpr float kMinusInfinity = -__builtin_huge_valf();

// Elements from one row of shared memory to the next.
template <int kHeadDim>
constexpr int kRowStride = kHeadDim + 8;

// scores[m][n] += the 16 x 8 products of the m-th 16 queries with keys 8n … 8n + 7, at elements dim … dim + 15.
template <class T, int kHeadDim, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void add_scores(float (&scores)[kRowTiles][kKeyTiles][4], const uint32_t (&q)[kRowTiles][4],
                                           const T* keys, int dim) {
  const int lane = lane_index();
  const T* mine = keys + (lane % 8 + lane / 16 * 8) * kRowStride<kHeadDim> + dim + lane / 8 % 2 * 8;
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    uint32_t b[4];
    load_matrices(b, mine + n * 8 * kRowStride<kHeadDim>);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      multiply_add<T>(scores[m][n], q[m], b[0], b[1]);
      multiply_add<T>(scores[m][n + 1], q[m], b[2], b[3]);
    }
  }
}

// The four registers of queries 0 … 15 at elements dim … dim + 15.
template <class T, int kHeadDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[4], const T* queries, int dim) {
  const int lane = lane_index();
  load_matrices(q, queries + lane % 16 * kRowStride<kHeadDim> + dim + lane / 16 * 8);
}

// Running softmax of 16 rows: this thread's part of rows g and g + 8, where lane = 4 g + i.
template <int kHeadDim>
struct SoftmaxRows {
  float out[kHeadDim / 8][4] = {};
  float largest[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};  // of this thread's columns only, until `finish`

  // Scores in base 2 become weights; what was summed before is rescaled to the new largest score.
  template <int kTiles>
  __device__ __forceinline__ void weigh(float (&scores)[kTiles][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = largest[r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) most = fmaxf(most, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
      const float base = most == kMinusInfinity ? 0.0f : most;  // no key seen yet
      const float shrink = exp2f(largest[r] - base);
      largest[r] = most;
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        scores[n][2 * r] = exp2f(scores[n][2 * r] - base);
        scores[n][2 * r + 1] = exp2f(scores[n][2 * r + 1] - base);
        sum[r] += scores[n][2 * r] + scores[n][2 * r + 1];
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        out[n][2 * r] *= shrink;
        out[n][2 * r + 1] *= shrink;
      }
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 1);
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], 2);
    }
  }
};

// out[m] += weights[m] · values. Weights are rounded to T; the fragment that held scores is the one that A wants.
template <class T, int kHeadDim, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void add_values(SoftmaxRows<kHeadDim> (&rows)[kRowTiles],
                                           const float (&weights)[kRowTiles][kKeyTiles][4], const T* values) {
  const int lane = lane_index();
  const T* mine = values + lane % 16 * kRowStride<kHeadDim> + lane / 16 * 8;
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
      load_matrices_transposed(b, mine + k * 8 * kRowStride<kHeadDim> + n * 8);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add<T>(rows[m].out[n], a[m], b[0], b[1]);
        multiply_add<T>(rows[m].out[n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace aether
