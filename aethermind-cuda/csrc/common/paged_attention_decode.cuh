// Paged attention of sequences with few queries (Flash-Decoding, Dao et al. 2023): reading keys and values is all the
// work, so each key is read once for all heads of its group, and long sequences are split among blocks.
//
// The four warps of a block take turns of 16 keys. Each brings its own next keys while it works on the last ones, and
// waits for no other warp until the end, when their four running softmaxes become one.
#pragma once

#include <type_traits>

#include "common/decode_tile.cuh"
#include "common/key_tile.cuh"

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
  static constexpr int kSumsStride = kHeadDim + 8;  // of rows of sums, four of which lie in different banks
  static_assert(kWarpBytes >= kDecodeRows * kSumsStride * static_cast<int>(sizeof(float)),
                "a warp leaves its sums there");
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
      const uint32_t sign = query_sign(call.scale);
      piece = {piece.x ^ sign, piece.y ^ sign, piece.z ^ sign, piece.w ^ sign};
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

// Scores of codes times the scales of their keys.
__device__ __forceinline__ void scale_scores(float (&scores)[2][4], float scales, int first_lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
    scores[i / 4][i % 4] *= __shfl_sync(kFullWarp, scales, first_lane + column);
  }
}

// Minus infinity where a row does not see a key.
__device__ __forceinline__ void mask_scores(float (&scores)[2][4], const KeyRange (&seen)[2], int first) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
    if (!seen[i % 4 / 2].has(first + column)) scores[i / 4][i % 4] = kMinusInfinity;
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
  float* powers = reinterpret_cast<float*>(shared);  // [warps, rows], then as many sums of weights
  float* weights = powers + kDecodeWarps * kDecodeRows;
  __syncthreads();  // queries and keys have been read
  const int row = lane_index() / 4, column = lane_index() % 4 * 2;
  float* own = sums_of(warp_index());
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const float2 pair{softmax.out[n][2 * r], softmax.out[n][2 * r + 1]};
      *reinterpret_cast<float2*>(own + (row + 8 * r) * Shared::kSumsStride + 8 * n + column) = pair;
    }
    if (lane_index() % 4 == 0) {
      powers[warp_index() * kDecodeRows + row + 8 * r] = softmax.base[r];
      weights[warp_index() * kDecodeRows + row + 8 * r] = softmax.sum[r];
    }
  }
  __syncthreads();
  const Partial<kDecodeRows, kHeadDim> partial(call.decode_partials,
                                               tile.first_partial(call) + static_cast<int>(blockIdx.z));
  const int count = tile.num_rows() * kHeadDim;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int r = i / kHeadDim, dim = i % kHeadDim;
    float most = kMinusInfinity, sum = 0.0f, out = 0.0f;
    for (int warp = 0; warp < kDecodeWarps; ++warp) most = fmaxf(most, powers[warp * kDecodeRows + r]);
    for (int warp = 0; warp < kDecodeWarps; ++warp) {
      const float of_warp = powers[warp * kDecodeRows + r];
      if (of_warp == kMinusInfinity) continue;  // it saw no key of this row
      const float share = fast_exp2(of_warp - most);
      sum += share * weights[warp * kDecodeRows + r];
      out += share * sums_of(warp)[r * Shared::kSumsStride + dim];
    }
    if (splits.count > 1) {
      partial.out(r)[dim] = out;
      if (dim == 0) {
        partial.power(r) = most;
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
  const DecodeTile tile(call, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (!tile.has_rows) return;
  const Splits splits = tile.splits(call);
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
  const KeyRange seen_by_all = {KeyRange::of_position(tile.position_of_row(kDecodeRows - 1), call.window).begin,
                                KeyRange::of_position(tile.position_of_row(0), call.window).end};
  SoftmaxRows<kHeadDim> softmax[1];
  const float scale = positive_scale(call.scale);
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
    if constexpr (kIsCoded) scale_scores(scores[0], scales, 0);
    if (!(seen_by_all.has(first) && seen_by_all.has(first + kDecodeKeys - 1))) mask_scores(scores[0], seen, first);
    softmax[0].weigh(scores[0], scale);
    if constexpr (kIsCoded) scale_scores(scores[0], scales, kDecodeKeys);
    add_values<T, kHeadDim>(softmax, scores, values);
    __syncwarp();
  }
  wait_for_copies<0>();
  softmax[0].finish(scale);
  merge_warps<T, kIsCoded, kHeadDim>(shared, softmax[0], call, tile, splits);
}

}  // namespace aether
