// Paged attention of sequences with few queries (Flash-Decoding, Dao et al. 2023): reading keys and values is all the
// work, so each key is read once for all heads of its group, and long sequences are split among blocks.
//
// The four warps of a block take turns of 16 keys. Each brings its own next keys while it works on the last ones, and
// waits for no other warp until the end, when their four running softmaxes become one.
#pragma once

#include <type_traits>

#include "common/key_tile.cuh"
#include "common/split_keys.cuh"

namespace aether {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeKeys = 16;  // a warp's at a time

template <class T, bool kIsCoded, int kHeadDim>
struct DecodeShared {
  using Tile = std::conditional_t<kIsCoded, CodeTile<T, kHeadDim, kDecodeKeys, kWarpSize>,
                                  FloatTile<T, kHeadDim, kDecodeKeys, kWarpSize>>;
  static constexpr int kRowBytes = kRowStride<kHeadDim> * static_cast<int>(sizeof(T));
  static constexpr int kQueryBytes = kDecodeRows * kRowBytes;
  static constexpr int kWideBytes = kIsCoded ? kDecodeKeys * kRowBytes : 0;  // of widened keys or values
  static constexpr int kWarpBytes = 2 * 2 * Tile::kBytes + 2 * kWideBytes;
  static constexpr int kBytes = kQueryBytes + kDecodeWarps * kWarpBytes;
  static_assert(kWarpBytes >= kDecodeRows * kHeadDim * static_cast<int>(sizeof(float)), "a warp leaves its sums there");
  static_assert(kQueryBytes >= 2 * kDecodeWarps * kDecodeRows * static_cast<int>(sizeof(float)));
};

// Queries of a tile, zeros behind them, to shared memory.
template <class T, int kHeadDim>
__device__ __forceinline__ void bring_queries(T* queries, const AttentionCall& call, const DecodeTile& tile) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kDecodeRows * kPieces; i += static_cast<int>(blockDim.x)) {
    const int row = i / kPieces, dim = i % kPieces * 8;
    uint4 piece{0, 0, 0, 0};
    if (row < tile.num_rows() && dim < call.head_dim) {
      const T* q = static_cast<const T*>(call.q) + tile.head_of_row(row, call.num_heads) * call.head_dim;
      piece = *reinterpret_cast<const uint4*>(q + dim);
    }
    *reinterpret_cast<uint4*>(queries + row * kRowStride<kHeadDim> + dim) = piece;
  }
}

// The scales of 16 keys in lanes 0 … 15, those of their values in the others.
__device__ __forceinline__ float scale_of_lane(const AttentionCall& call, const PagedRows& rows, int first, int end) {
  const int key = first + lane_index() % kDecodeKeys;
  if (key >= end) return 0.0f;
  return (lane_index() < kDecodeKeys ? call.k_scale : call.v_scale)[rows(key)];
}

// Scores times `scale` and, of codes, those of their keys; minus infinity where a row does not see a key.
template <bool kIsCoded>
__device__ __forceinline__ void mask_scores(float (&scores)[2][4], const KeyRange (&seen)[2], int first, float scale,
                                            float scales) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
    float& score = scores[i / 4][i % 4];
    score *= kIsCoded ? scale * __shfl_sync(kFullWarp, scales, column) : scale;
    if (!seen[i % 4 / 2].has(first + column)) score = kMinusInfinity;
  }
}

// The parts of the four warps put together, into the output where nobody else has a part, else into the workspace.
template <class T, bool kIsCoded, int kHeadDim>
__device__ __forceinline__ void merge_warps(unsigned char* shared, const SoftmaxRows<kHeadDim>& softmax,
                                            const AttentionCall& call, const DecodeTile& tile, const Splits& splits) {
  using Shared = DecodeShared<T, kIsCoded, kHeadDim>;
  const auto sums_of = [&](int warp) {
    return reinterpret_cast<float*>(shared + Shared::kQueryBytes + warp * Shared::kWarpBytes);
  };
  float* largest = reinterpret_cast<float*>(shared);  // [warps, rows], then as many sums of weights
  float* weights = largest + kDecodeWarps * kDecodeRows;
  __syncthreads();  // queries and keys have been read
  const int row = lane_index() / 4, column = lane_index() % 4 * 2;
  float* own = sums_of(warp_index());
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      own[(row + 8 * r) * kHeadDim + 8 * n + column] = softmax.out[n][2 * r];
      own[(row + 8 * r) * kHeadDim + 8 * n + column + 1] = softmax.out[n][2 * r + 1];
    }
    if (lane_index() % 4 == 0) {
      largest[warp_index() * kDecodeRows + row + 8 * r] = softmax.largest[r];
      weights[warp_index() * kDecodeRows + row + 8 * r] = softmax.sum[r];
    }
  }
  __syncthreads();
  const Partial<kHeadDim> partial(call, static_cast<int>(blockIdx.z));
  const int count = tile.num_rows() * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int r = i / kHeadDim, dim = i % kHeadDim;
    float most = kMinusInfinity, sum = 0.0f, out = 0.0f;
    for (int warp = 0; warp < kDecodeWarps; ++warp) most = fmaxf(most, largest[warp * kDecodeRows + r]);
    for (int warp = 0; warp < kDecodeWarps; ++warp) {
      const float of_warp = largest[warp * kDecodeRows + r];
      if (of_warp == kMinusInfinity) continue;  // it saw no key of this row
      const float share = exp2f(of_warp - most);
      sum += share * weights[warp * kDecodeRows + r];
      out += share * sums_of(warp)[i];
    }
    if (splits.count > 1) {
      partial.out(r)[dim] = out;
      if (dim == 0) {
        partial.largest(r) = most;
        partial.sum(r) = sum;
      }
    } else if (dim < call.head_dim) {
      T* target = static_cast<T*>(call.out) + tile.head_of_row(r, call.num_heads) * call.head_dim;
      target[dim] = from_float<T>(out / sum);
    }
  }
}

template <class T, bool kIsCoded, int kHeadDim>
__device__ __forceinline__ void paged_attention_decode(const AttentionCall& call) {
  using Shared = DecodeShared<T, kIsCoded, kHeadDim>;
  using Tile = typename Shared::Tile;
  AETHER_DYNAMIC_SHARED(unsigned char, shared);
  const DecodeTile tile(call);
  if (!tile.has_rows) return;
  const Splits splits(tile.keys(call.window), call.num_splits);
  if (static_cast<int>(blockIdx.z) >= splits.count) return;
  const KeyRange part = splits.part(static_cast<int>(blockIdx.z));
  const PagedRows rows = call.rows(tile.queries.sequence, tile.kv_head);

  unsigned char* own = shared + Shared::kQueryBytes + warp_index() * Shared::kWarpBytes;
  constexpr int kStep = kDecodeWarps * kDecodeKeys;
  int first = part.begin + warp_index() * kDecodeKeys;
  float next_scales = 0.0f;
  const auto fetch = [&](int stage, int key) {
    unsigned char* to = own + stage * 2 * Tile::kBytes;
    const void* const caches[] = {call.k_cache, call.v_cache};
    if (key < part.end) Tile::fetch(to, caches, rows, call.head_dim, key, part.end, lane_index());
    commit_copies();
    if constexpr (kIsCoded) next_scales = scale_of_lane(call, rows, key, part.end);
  };
  fetch(0, first);

  T* queries = reinterpret_cast<T*>(shared);
  bring_queries<T, kHeadDim>(queries, call, tile);
  __syncthreads();
  uint32_t q[kHeadDim / 16][1][4];
#pragma unroll
  for (int d = 0; d < kHeadDim / 16; ++d) load_queries<T, kHeadDim>(q[d][0], queries, 16 * d);

  const KeyRange seen[2] = {KeyRange::of_position(tile.position_of_row(lane_index() / 4), call.window),
                            KeyRange::of_position(tile.position_of_row(lane_index() / 4 + 8), call.window)};
  SoftmaxRows<kHeadDim> softmax[1];
  const float scale = call.scale * 1.44269504f;
  for (int stage = 0; first < part.end; first += kStep, stage ^= 1) {
    const float scales = next_scales;
    fetch(stage ^ 1, first + kStep);
    wait_for_copies<1>();
    __syncwarp();
    const unsigned char* from = own + stage * 2 * Tile::kBytes;
    const T* keys = reinterpret_cast<const T*>(from);
    const T* values = reinterpret_cast<const T*>(from + Tile::kBytes);
    if constexpr (kIsCoded) {
      T* wide = reinterpret_cast<T*>(own + 4 * Tile::kBytes);
      const CodeType type = static_cast<CodeType>(call.code_type);
      Tile::widen(wide, from, type, lane_index());
      Tile::widen(wide + Shared::kWideBytes / sizeof(T), from + Tile::kBytes, type, lane_index());
      keys = wide;
      values = wide + Shared::kWideBytes / sizeof(T);
      __syncwarp();
    }
    float scores[1][2][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) add_scores<T, kHeadDim>(scores, q[d], keys, 16 * d);
    mask_scores<kIsCoded>(scores[0], seen, first, scale, scales);
    softmax[0].weigh(scores[0]);
    if constexpr (kIsCoded) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
        scores[0][i / 4][i % 4] *= __shfl_sync(kFullWarp, scales, kDecodeKeys + column);
      }
    }
    add_values<T, kHeadDim>(softmax, scores, values);
    __syncwarp();
  }
  wait_for_copies<0>();
  softmax[0].finish();
  merge_warps<T, kIsCoded, kHeadDim>(shared, softmax[0], call, tile, splits);
}

// Puts the splits of a row together; a warp takes a row, blockIdx.z counts fours of them.
template <class T, int kHeadDim>
__device__ __forceinline__ void paged_attention_combine(const AttentionCall& call) {
  const DecodeTile tile(call);
  const int row = static_cast<int>(blockIdx.z * (blockDim.x / kWarpSize)) + warp_index();
  if (!tile.has_rows || row >= tile.num_rows()) return;
  const Splits splits(tile.keys(call.window), call.num_splits);
  if (splits.count <= 1) return;
  float most = kMinusInfinity;
  for (int split = lane_index(); split < splits.count; split += kWarpSize) {
    most = fmaxf(most, Partial<kHeadDim>(call, split).largest(row));
  }
  most = warp_reduce<Max>(most);
  float sum = 0.0f, out[kHeadDim / kWarpSize] = {};
  for (int split = 0; split < splits.count; ++split) {
    const Partial<kHeadDim> partial(call, split);
    const float share = exp2f(partial.largest(row) - most);  // 0 where a window hides the whole split
    sum += share * partial.sum(row);
#pragma unroll
    for (int i = 0; i < kHeadDim / kWarpSize; ++i) out[i] += share * partial.out(row)[lane_index() + i * kWarpSize];
  }
  T* target = static_cast<T*>(call.out) + tile.head_of_row(row, call.num_heads) * call.head_dim;
#pragma unroll
  for (int i = 0; i < kHeadDim / kWarpSize; ++i) {
    const int dim = lane_index() + i * kWarpSize;
    if (dim < call.head_dim) target[dim] = from_float<T>(out[i] / sum);
  }
}

}  // namespace aether
