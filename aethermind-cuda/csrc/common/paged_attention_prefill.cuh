// Paged attention of sequences with many queries: FlashAttention-2 (Dao 2023) over a ragged batch.
//
// A block computes 128 rows of one kv head and iterates over their visible keys, or over a split of them, 32 at a time;
// a warp holds 32 of the rows, or 16 of heads of more than 128 elements. Keys and values are double-buffered: one stage
// is multiplied while cp.async fills the other.
#pragma once

#include <type_traits>

#include "common/key_tile.cuh"
#include "common/prefill_tile.cuh"

namespace aether {

// Tiles of 16 rows per warp: as many as there are registers for their accumulators.
template <int kHeadDim>
constexpr int kRowTiles = kHeadDim <= 128 ? 2 : 1;
template <int kHeadDim>
constexpr int kPrefillThreads = kPrefillRows / (16 * kRowTiles<kHeadDim>)*kWarpSize;

constexpr int kPrefillKeys = 32;  // per step

template <class T, bool kIsQuantized, int kHeadDim>
struct PrefillShared {
  using Tile = std::conditional_t<kIsQuantized, CodeTile<T, kHeadDim, kPrefillKeys, kPrefillThreads<kHeadDim>>,
                                  FloatTile<T, kHeadDim, kPrefillKeys, kPrefillThreads<kHeadDim>>>;
  // With head_dim 128 the accumulators leave no registers for queries.
  static constexpr bool kAreQueriesInRegisters = kHeadDim <= 96;
  static constexpr int kRowBytes = kRowStride<kHeadDim> * static_cast<int>(sizeof(T));
  static constexpr int kStageBytes = 2 * Tile::kBytes;                                   // keys, then values
  static constexpr int kDequantizedBytes = kIsQuantized ? kPrefillKeys * kRowBytes : 0;  // dequantised keys or values
  static constexpr int kQueryBytes = kPrefillRows * kRowBytes;
  static constexpr int kQueries = kStageBytes;  // after the first stage
  // Once queries are in registers, their shared memory is reused by the second stage.
  static constexpr int kSecondStage = kQueries + (kAreQueriesInRegisters ? 0 : kQueryBytes);
  static constexpr int kDequantized = kSecondStage + kStageBytes;
  static constexpr int kScales =
      kDequantized + 2 * kDequantizedBytes;  // scales of each stage's keys, then of its values
  static constexpr int kEnd = kScales + (kIsQuantized ? 4 * kPrefillKeys * static_cast<int>(sizeof(float)) : 0);
  static constexpr int kBytes = kEnd > kQueries + kQueryBytes ? kEnd : kQueries + kQueryBytes;
};

template <class T, int kHeadDim>
__device__ __forceinline__ void stage_queries(T* queries, const AttentionCall& call, const PrefillTile& tile) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillRows * kPieces; i += kPrefillThreads<kHeadDim>) {
    const int row = i / kPieces, dim = i % kPieces * 8;
    const bool is_present = row < tile.num_rows() && dim < call.head_dim;
    const int64_t source = is_present ? tile.head_of_row(row, call.num_heads) * call.head_dim + dim : 0;
    copy_async_16(queries + row * kRowStride<kHeadDim> + dim, static_cast<const T*>(call.q) + source, is_present);
  }
}

// Negates queries, for a negative scale.
template <class T, int kHeadDim>
__device__ __forceinline__ void negate_queries(T* queries, uint32_t sign) {
  constexpr int kWords = kPrefillRows * kRowStride<kHeadDim> / 2;
  uint32_t* words = reinterpret_cast<uint32_t*>(queries);
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kPrefillThreads<kHeadDim>) words[i] ^= sign;
}

// Multiplies scores (or weights) by the scales of their quantised keys (or values).
template <int kTiles>
__device__ __forceinline__ void scale_scores(float (&scores)[kTiles][kPrefillKeys / 8][4], const float* scales) {
#pragma unroll
  for (int n = 0; n < kPrefillKeys / 8; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(scales + 8 * n + lane_index() % 4 * 2);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] *= i % 2 == 0 ? pair.x : pair.y;
    }
  }
}

// Caps scores, and adds the slopes of their heads.
template <int kTiles>
__device__ __forceinline__ void transform_scores(float (&scores)[kTiles][kPrefillKeys / 8][4],
                                                 const AttentionCall& call, const PrefillTile& tile, int warp_row,
                                                 int first) {
  if (call.softcap > 0.0f) {
    const ScoreCap cap(call.softcap, call.scale);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[m][n][c] = cap(scores[m][n][c]);
      }
    }
  }
  if (call.slopes == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int row = warp_row + 8 * i + lane_index() / 4;
    const float slope = call.score_slope(tile.query_head_of_row(row));
    const int distance = first + lane_index() % 4 * 2 - tile.position_of_row(row);
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = scores[i / 2][n][i % 2 * 2 + c];
        score = fmaf(slope, static_cast<float>(distance + 8 * n + c), score);
      }
    }
  }
}

// Masks the scores of keys that a row must not attend to.
template <int kTiles>
__device__ __forceinline__ void mask_scores(float (&scores)[kTiles][kPrefillKeys / 8][4], const PrefillTile& tile,
                                            int warp_row, int first, int window) {
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int position = tile.position_of_row(warp_row + 8 * i + lane_index() / 4);
    const KeyRange visible = KeyRange::of_position(position, window);
#pragma unroll
    for (int n = 0; n < kPrefillKeys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = scores[i / 2][n][i % 2 * 2 + c];
        score = visible.has(first + 8 * n + lane_index() % 4 * 2 + c) ? score : kMinusInfinity;
      }
    }
  }
}

// Writes this thread's elements of a row (its `r`-th of a tile of 16) to a partial for the combine kernel.
template <int kHeadDim>
__device__ __forceinline__ void store_partial_row(const AttentionCall& call, int64_t index, int row,
                                                  const SoftmaxRows<kHeadDim>& softmax, int r) {
  const SplitPartial<kPrefillRows, kHeadDim> partial(call.prefill_partials, index);
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
    const float2 pair{softmax.out[n][2 * r], softmax.out[n][2 * r + 1]};
    *reinterpret_cast<float2*>(partial.out(row) + 8 * n + lane_index() % 4 * 2) = pair;
  }
  if (lane_index() % 4 == 0) {
    partial.max_exponent(row) = softmax.base[r];
    partial.sum(row) = softmax.sum[r];
  }
}

// Writes the same elements to the output.
template <class T, int kHeadDim>
__device__ __forceinline__ void store_row(const AttentionCall& call, const PrefillTile& tile, int row,
                                          const SoftmaxRows<kHeadDim>& softmax, int r) {
  const float sink = fast_exp2(call.sink_exponent(tile.query_head_of_row(row)) - softmax.base[r]);
  const float inverse = 1.0f / (softmax.sum[r] + sink);
  T* out = static_cast<T*>(call.out) + tile.head_of_row(row, call.num_heads) * call.head_dim;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
    const int dim = 8 * n + lane_index() % 4 * 2;
    const float* pair = softmax.out[n] + 2 * r;
    if (dim < call.head_dim) {
      *reinterpret_cast<uint32_t*>(out + dim) = packed<T>(pair[0] * inverse, pair[1] * inverse);
    }
  }
}

template <class T, bool kIsQuantized, int kHeadDim>
__device__ __forceinline__ void paged_attention_prefill(const AttentionCall& call) {
  using Shared = PrefillShared<T, kIsQuantized, kHeadDim>;
  using Tile = typename Shared::Tile;
  constexpr int kKeys = kPrefillKeys, kTiles = kRowTiles<kHeadDim>;
  static_assert(kSplitGranularity % kKeys == 0,
                "some keys at a time never cross the end of a split that is not the last");
  AETHER_DYNAMIC_SHARED(unsigned char, shared);
  __shared__ PrefillWork work;  // in shared memory to save registers
  if (warp_index() == 0) {
    const PrefillWork found = PrefillWork::of(call, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
    if (lane_index() == 0) work = found;
  }
  __syncthreads();
  if (work.num_splits == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const PrefillTile& tile = work.tile;
  const KeyRange keys = work.keys;
  const PagedRows rows = call.rows(tile.queries.sequence, tile.kv_head);
  const KeyRange visible_to_all_rows = {
      KeyRange::of_position(tile.position_of_row(tile.num_rows() - 1), call.window).begin,
      KeyRange::of_position(tile.position_of_row(0), call.window).end};

  const auto stage_at = [&](int stage) { return shared + (stage == 0 ? 0 : Shared::kSecondStage); };
  const auto scales_at = [&](int stage) {
    return reinterpret_cast<float*>(shared + Shared::kScales) + stage * 2 * kKeys;
  };
  const auto fetch = [&](int stage, int first) {
    const void* const caches[] = {call.k_cache, call.v_cache};
    Tile::fetch(stage_at(stage), caches, rows, call.head_dim, first, keys.end, thread);
    commit_copies();
  };
  const auto stage_scales = [&](int stage, int first) {
    if (thread >= 2 * kKeys) return;
    const int key = first + thread % kKeys;
    const float* source = thread < kKeys ? call.k_scale : call.v_scale;
    scales_at(stage)[thread] = key < keys.end ? source[rows(key)] : 0.0f;
  };

  T* queries = reinterpret_cast<T*>(shared + Shared::kQueries);
  stage_queries<T, kHeadDim>(queries, call, tile);
  fetch(0, keys.begin);
  const int warp_row = warp_index() * kTiles * 16;
  // A warp without rows only copies keys and values. (The branch costs registers, which head_dim 96 does not have.)
  const bool has_rows = kHeadDim == 96 || warp_row < tile.num_rows();
  const T* warp_queries = queries + warp_row * kRowStride<kHeadDim>;
  uint32_t q[Shared::kAreQueriesInRegisters ? kHeadDim / 16 : 1][kTiles][4];
  const auto load_warp_queries = [&](uint32_t (&fragments)[kTiles][4], int dim) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      load_queries<T, kHeadDim>(fragments[m], warp_queries + 16 * m * kRowStride<kHeadDim>, dim);
    }
  };
  if (Shared::kAreQueriesInRegisters || call.scale < 0.0f) {
    wait_for_copies<0>();
    __syncthreads();
    if (call.scale < 0.0f) {
      negate_queries<T, kHeadDim>(queries, query_sign(call.scale));
      __syncthreads();
    }
    if constexpr (Shared::kAreQueriesInRegisters) {
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) load_warp_queries(q[d], 16 * d);
      if constexpr (kIsQuantized) __syncthreads();  // scales reuse the memory of queries
    }
  }
  if constexpr (kIsQuantized) stage_scales(0, keys.begin);

  SoftmaxRows<kHeadDim> softmax[kTiles];
  const float scale = positive_scale(call.scale);
  for (int first = keys.begin, stage = 0; first < keys.end; first += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // all copies have arrived, and no warp reads the other stage any more
    if (first + kKeys < keys.end) {
      fetch(stage ^ 1, first + kKeys);
      if constexpr (kIsQuantized) stage_scales(stage ^ 1, first + kKeys);
    }
    const T* tile_keys = reinterpret_cast<const T*>(stage_at(stage));
    const T* values = reinterpret_cast<const T*>(stage_at(stage) + Tile::kBytes);
    if constexpr (kIsQuantized) {
      T* dequantized_keys = reinterpret_cast<T*>(shared + Shared::kDequantized);
      T* dequantized_values = reinterpret_cast<T*>(shared + Shared::kDequantized + Shared::kDequantizedBytes);
      const CodeType type = static_cast<CodeType>(call.code_type);
      Tile::dequantize(dequantized_keys, stage_at(stage), type, thread);
      Tile::dequantize(dequantized_values, stage_at(stage) + Tile::kBytes, type, thread);
      __syncthreads();
      tile_keys = dequantized_keys;
      values = dequantized_values;
    }
    if (!has_rows) continue;
    const float* scales = scales_at(stage);
    float scores[kTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      constexpr bool kIsLoaded = Shared::kAreQueriesInRegisters;
      if constexpr (!kIsLoaded) load_warp_queries(q[0], 16 * d);
      add_scores<T, kHeadDim>(scores, q[kIsLoaded ? d : 0], tile_keys, 16 * d);
    }
    if constexpr (kIsQuantized) scale_scores(scores, scales);
    if (call.transforms_scores()) transform_scores(scores, call, tile, warp_row, first);
    if (!(visible_to_all_rows.has(first) && visible_to_all_rows.has(first + kKeys - 1))) {
      mask_scores(scores, tile, warp_row, first, call.window);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) softmax[m].update(scores[m], scale);
    if constexpr (kIsQuantized) scale_scores(scores, scales + kKeys);
    add_values<T, kHeadDim>(softmax, scores, values);
  }

  if (!has_rows) return;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    softmax[m].finish(scale);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + 16 * m + 8 * r + lane_index() / 4;
      if (row >= tile.num_rows()) continue;
      if (work.num_splits > 1) {
        store_partial_row<kHeadDim>(call, work.partial, row, softmax[m], r);
      } else {
        store_row<T, kHeadDim>(call, tile, row, softmax[m], r);
      }
    }
  }
}

}  // namespace aether
