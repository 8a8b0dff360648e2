// Paged attention of sequences with many queries: FlashAttention-2 (Dao 2023) over a ragged batch.
//
// A block takes 128 rows of one kv head and goes through the keys that they see, some at a time; a warp keeps 32 of the
// rows. Values come while scores are computed, and the next keys while values are added up.
#pragma once

#include <type_traits>

#include "common/key_tile.cuh"
#include "common/split_keys.cuh"

namespace aether {

constexpr int kPrefillWarps = 4;
constexpr int kPrefillThreads = kPrefillWarps * kWarpSize;
constexpr int kRowTiles = 2;  // of 16 rows, a warp's
constexpr int kPrefillRows = kPrefillWarps * kRowTiles * 16;

// Keys at a time: what the registers of a thread hold beside the sums of 32 rows.
template <int kHeadDim>
constexpr int kPrefillKeys = kHeadDim <= 64 ? 64 : 32;

template <class T, bool kIsCoded, int kHeadDim>
struct PrefillShared {
  static constexpr int kNumKeys = kPrefillKeys<kHeadDim>;
  using Tile = std::conditional_t<kIsCoded, CodeTile<T, kHeadDim, kNumKeys, kPrefillThreads>,
                                  FloatTile<T, kHeadDim, kNumKeys, kPrefillThreads>>;
  static constexpr int kRowBytes = kRowStride<kHeadDim> * static_cast<int>(sizeof(T));
  static constexpr int kQueryBytes = kPrefillRows * kRowBytes;
  static constexpr int kKeys = kQueryBytes;
  static constexpr int kValues = kKeys + Tile::kBytes;
  static constexpr int kWide = kValues + Tile::kBytes;  // keys and then values, widened
  static constexpr int kScales = kWide + (kIsCoded ? kNumKeys * kRowBytes : 0);
  static constexpr int kBytes = kScales + (kIsCoded ? 2 * kNumKeys * static_cast<int>(sizeof(float)) : 0);
};

// 128 rows of one sequence; those of most keys come first, since blocks that begin late should end soon.
struct PrefillTile {
  Queries queries;
  int first_row;
  int group;
  int kv_head;
  bool has_rows;

  // Block x takes the x-th tile of the batch. Each warp looks for it among 32 sequences at a time.
  __device__ __forceinline__ explicit PrefillTile(const AttentionCall& call)
      : queries(), first_row(0), group(call.group_size()), kv_head(static_cast<int>(blockIdx.y)), has_rows(false) {
    int wanted = static_cast<int>(blockIdx.x);
    for (int base = 0; base < call.num_sequences; base += kWarpSize) {
      const int sequence = base + lane_index();
      const int tiles = sequence < call.num_sequences ? num_tiles(call, sequence) : 0;
      int before = tiles;  // up to and with this lane's
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int other = __shfl_up_sync(kFullWarp, before, distance);
        if (lane_index() >= distance) before += other;
      }
      const int total = __shfl_sync(kFullWarp, before, kWarpSize - 1);
      if (wanted >= total) {
        wanted -= total;
        continue;
      }
      const int owner = __ffs(static_cast<int>(__ballot_sync(kFullWarp, before > wanted))) - 1;
      const int tile = __shfl_sync(kFullWarp, before, owner) - 1 - wanted;
      queries = Queries::of_sequence(call, base + owner);
      first_row = tile * kPrefillRows;
      has_rows = true;
      return;
    }
  }

  // None for sequences that the decode kernel takes.
  __device__ __forceinline__ int num_tiles(const AttentionCall& call, int sequence) const {
    const int rows = (call.cu_seqlens_q[sequence + 1] - call.cu_seqlens_q[sequence]) * group;
    const int of_decode = (group + kDecodeRows - 1) / kDecodeRows * kDecodeRows;
    return rows <= of_decode ? 0 : (rows + kPrefillRows - 1) / kPrefillRows;
  }

  __device__ __forceinline__ int num_rows() const { return min(kPrefillRows, queries.count * group - first_row); }

  // [T, H] index of a row.
  __device__ __forceinline__ int64_t head_of_row(int row, int num_heads) const {
    const int packed = first_row + row;
    return static_cast<int64_t>(queries.first_token + packed / group) * num_heads + kv_head * group + packed % group;
  }

  __device__ __forceinline__ int position_of_row(int row) const {
    return queries.first_position + min((first_row + row) / group, queries.count - 1);
  }
};

template <class T, int kHeadDim>
__device__ __forceinline__ void bring_queries(T* queries, const AttentionCall& call, const PrefillTile& tile) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kPrefillRows * kPieces; i += kPrefillThreads) {
    const int row = i / kPieces, dim = i % kPieces * 8;
    const bool is_present = row < tile.num_rows() && dim < call.head_dim;
    const int64_t source = is_present ? tile.head_of_row(row, call.num_heads) * call.head_dim + dim : 0;
    copy_async_16(queries + row * kRowStride<kHeadDim> + dim, static_cast<const T*>(call.q) + source, is_present);
  }
}

template <class T, bool kIsCoded, int kHeadDim>
__device__ __forceinline__ void paged_attention_prefill(const AttentionCall& call) {
  using Shared = PrefillShared<T, kIsCoded, kHeadDim>;
  using Tile = typename Shared::Tile;
  constexpr int kKeys = kPrefillKeys<kHeadDim>;
  AETHER_DYNAMIC_SHARED(unsigned char, shared);
  const PrefillTile tile(call);
  if (!tile.has_rows) return;
  const int thread = static_cast<int>(threadIdx.x);
  const PagedRows rows = call.rows(tile.queries.sequence, tile.kv_head);
  const int first_position = tile.position_of_row(0), last_position = tile.position_of_row(tile.num_rows() - 1);
  const KeyRange keys = KeyRange::of_positions(first_position, last_position, call.window);
  float* scales = reinterpret_cast<float*>(shared + Shared::kScales);  // of keys, then of values
  T* const wide = reinterpret_cast<T*>(shared + Shared::kWide);

  const auto fetch = [&](const void* cache, int offset, int first) {
    const void* const caches[] = {cache};
    Tile::fetch(shared + offset, caches, rows, call.head_dim, first, keys.end, thread);
    commit_copies();
  };
  const auto bring_scales = [&](int first) {
    if (thread >= 2 * kKeys) return;
    const int key = first + thread % kKeys;
    const float* source = thread < kKeys ? call.k_scale : call.v_scale;
    scales[thread] = key < keys.end ? source[rows(key)] : 0.0f;
  };
  // What was brought, for all threads to read.
  const auto ready = [&](int offset) -> const T* {
    wait_for_copies<0>();
    __syncthreads();
    if constexpr (kIsCoded) {
      Tile::widen(wide, shared + offset, static_cast<CodeType>(call.code_type), thread);
      __syncthreads();
      return wide;
    } else {
      return reinterpret_cast<const T*>(shared + offset);
    }
  };

  T* queries = reinterpret_cast<T*>(shared);
  bring_queries<T, kHeadDim>(queries, call, tile);
  fetch(call.k_cache, Shared::kKeys, keys.begin);
  if constexpr (kIsCoded) bring_scales(keys.begin);

  const int own_row = warp_index() * kRowTiles * 16;
  int position[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    position[i / 2][i % 2] = tile.position_of_row(own_row + i / 2 * 16 + i % 2 * 8 + lane_index() / 4);
  }
  SoftmaxRows<kHeadDim> softmax[kRowTiles];
  const float scale = call.scale * 1.44269504f;
  for (int first = keys.begin; first < keys.end; first += kKeys) {
    const T* tile_keys = ready(Shared::kKeys);
    fetch(call.v_cache, Shared::kValues, first);
    float scores[kRowTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      uint32_t q[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_queries<T, kHeadDim>(q[m], queries + (own_row + 16 * m) * kRowStride<kHeadDim>, 16 * d);
      }
      add_scores<T, kHeadDim>(scores, q, tile_keys, 16 * d);
    }
    const int last = first + kKeys - 1;
    const bool all_see_all = last <= first_position && (call.window <= 0 || first > last_position - call.window);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
        float& score = scores[m][i / 4][i % 4];
        score *= kIsCoded ? scale * scales[column] : scale;
        if (!all_see_all && !KeyRange::of_position(position[m][i % 4 / 2], call.window).has(first + column)) {
          score = kMinusInfinity;
        }
      }
      softmax[m].weigh(scores[m]);
      if constexpr (kIsCoded) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
          scores[m][i / 4][i % 4] *= scales[kKeys + i / 4 * 8 + lane_index() % 4 * 2 + i % 2];
        }
      }
    }
    const T* values = ready(Shared::kValues);
    if (last + 1 < keys.end) {
      fetch(call.k_cache, Shared::kKeys, last + 1);
      if constexpr (kIsCoded) bring_scales(last + 1);
    }
    add_values<T, kHeadDim>(softmax, scores, values);
  }

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    softmax[m].finish();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own_row + 16 * m + 8 * r + lane_index() / 4;
      if (row >= tile.num_rows()) continue;
      const float inverse = 1.0f / softmax[m].sum[r];
      T* out = static_cast<T*>(call.out) + tile.head_of_row(row, call.num_heads) * call.head_dim;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        const int dim = 8 * n + lane_index() % 4 * 2;
        const float* pair = softmax[m].out[n] + 2 * r;
        if (dim < call.head_dim) {
          *reinterpret_cast<uint32_t*>(out + dim) = packed<T>(pair[0] * inverse, pair[1] * inverse);
        }
      }
    }
  }
}

}  // namespace aether
