// Latent attention by wgmma (compute capability 9.0): 64 rows of a block with 64 keys at a time. See
// common/latent_attention.cuh for the operator and the rows.
//
// Both warpgroups compute all scores and softmax weights, and each half of the output's columns: weights then need not
// leave the registers in which they are computed. Keys, whose columns are nine operands of 64, are also the values.
#pragma once

#include "common/async_copy.cuh"
#include "common/latent_rows.cuh"
#include "common/wgmma.cuh"

namespace aether {

template <class T>
struct LatentWgmma {
  static constexpr int kRows = 64, kKeys = 64;
  static constexpr int kOperandPieces = kRows * kPiecesOfRow;  // of 64 columns
  static constexpr int kOperands = kLatentKeyDim / kTileDepth;
  static constexpr int kTilePieces = kOperands * kOperandPieces;
  static constexpr int kColumns = kLatentRank / 2;  // of a warpgroup
  static constexpr int kKeyThreads = 8;             // copy a key
  static constexpr int kPasses = kKeys * kKeyThreads / kLatentThreads;
  static constexpr float kRescaleThreshold = 8.0f;  // of exponents: see SoftmaxRows
  using Piece = Vector<T>;
  using Tiles = LatentKeyTiles<kKeys>;

  const AttentionCall& call;
  Piece* memory;  // queries, then two stages of keys
  int first_row;
  // This thread's rows of the block are `row` and the eighth after it.
  int row = warp_index() % 4 * 16 + lane_index() / 4;
  LatentRow places[2];
  float out[2][kColumns / 4] = {};
  float scores[kKeys / 2];
  float base[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0.0f, 0.0f};  // of this thread's keys only, until `finish`

  __device__ __forceinline__ LatentWgmma(const AttentionCall& call, Piece* memory, int first_row)
      : call(call),
        memory(memory),
        first_row(first_row),
        places{LatentRow(call, first_row + row), LatentRow(call, first_row + row + 8)} {}

  __device__ __forceinline__ Piece* keys_of(int stage) const { return memory + (1 + stage) * kTilePieces; }

  __device__ __forceinline__ void copy_queries() const {
    constexpr int kRowPieces = kOperands * kPiecesOfRow;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kRowPieces; i += kLatentThreads) {
      const int r = i / kRowPieces, piece = i % kRowPieces;
      const bool is_present = first_row + r < call.num_tokens * call.num_heads;
      const int64_t source = is_present ? static_cast<int64_t>(first_row + r) * kLatentKeyDim + piece * Piece::size : 0;
      copy_async_16(memory + piece / kPiecesOfRow * kOperandPieces + swizzled_piece(r, piece % kPiecesOfRow),
                    static_cast<const T*>(call.q) + source, is_present);
    }
  }

  // The cache rows of this thread's keys of a tile; -1 beyond the last one.
  __device__ __forceinline__ void find_keys(int64_t (&found)[kPasses], const Tiles& tile, bool is_present) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int key = tile.first + static_cast<int>(threadIdx.x) / kKeyThreads + pass * (kKeys / kPasses);
      found[pass] = is_present && key < tile.end ? call.rows(tile.sequence, 0)(key) : -1;
    }
  }

  __device__ __forceinline__ void copy_keys(int stage, const int64_t (&found)[kPasses]) const {
    const int piece = static_cast<int>(threadIdx.x) % kKeyThreads;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int key = static_cast<int>(threadIdx.x) / kKeyThreads + pass * (kKeys / kPasses);
      const bool is_present = found[pass] >= 0;
      const T* const from = static_cast<const T*>(call.k_cache) + (is_present ? found[pass] * kLatentKeyDim : 0);
      Piece* const to = keys_of(stage) + swizzled_piece(key, piece);
#pragma unroll
      for (int operand = 0; operand < kOperands; ++operand) {
        copy_async_16(to + operand * kOperandPieces, from + operand * kTileDepth + piece * Piece::size, is_present);
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(int stage) {
    begin_products();
#pragma unroll
    for (int operand = 0; operand < kOperands; ++operand) {
      multiply_tiles<T>(scores, memory + operand * kOperandPieces, keys_of(stage) + operand * kOperandPieces,
                        operand > 0);
    }
    commit_products();
  }

  // Turns scores into weights 2^(scale (score - base)), rounded to T, and rescales earlier sums.
  __device__ __forceinline__ void update_softmax(uint32_t (&weights)[kKeys / 16][4], const Tiles& tile, float scale,
                                                 float sign) {
    float factors[2] = {1.0f, 1.0f};
    bool needs_rescale = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int num_visible = tile.visible_to(places[h]);
      float largest = base[h];
#pragma unroll
      for (int r = 2 * h; r < kKeys / 2; r += 4) {
        const int key = r / 4 * 8 + lane_index() % 4 * 2;
        scores[r] = key < num_visible ? sign * scores[r] : kMinusInfinity;
        scores[r + 1] = key + 1 < num_visible ? sign * scores[r + 1] : kMinusInfinity;
        largest = fmaxf(largest, fmaxf(scores[r], scores[r + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
      if ((largest - base[h]) * scale > kRescaleThreshold) {  // false before the first visible key
        factors[h] = fast_exp2((base[h] - largest) * scale);
        base[h] = largest;
        sum[h] *= factors[h];
        needs_rescale = true;
      }
      const float power = base[h] == kMinusInfinity ? 0.0f : base[h] * scale;
#pragma unroll
      for (int r = 2 * h; r < kKeys / 2; r += 4) {
        const float first = fast_exp2(fmaf(scores[r], scale, -power));
        const float second = fast_exp2(fmaf(scores[r + 1], scale, -power));
        sum[h] += first + second;
        weights[r / 8][r / 2 % 4] = packed<T>(first, second);
      }
    }
    if (!__any_sync(kFullWarp, needs_rescale)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < kColumns / 4; ++r) out[half][r] *= factors[r / 2 % 2];
    }
  }

  __device__ __forceinline__ void add_values(const uint32_t (&weights)[kKeys / 16][4], int stage) {
    const Piece* const values = keys_of(stage) + warp_index() / 4 * (kColumns / kTileDepth) * kOperandPieces;
    begin_products();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Piece* const columns = values + half * (kColumns / 2 / kTileDepth) * kOperandPieces;
        add_product<T, kKeys>(out[half], weights[k], columns, 16 * k);
      }
    }
    commit_products();
  }

  // Calls store(half of `out`, its pairs' column, pair) for a row of this thread.
  template <class Store>
  __device__ __forceinline__ void for_each_pair(int h, const Store& store) const {
    const int first_column = warp_index() / 4 * kColumns + lane_index() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        const float2 pair{out[half][4 * j + 2 * h], out[half][4 * j + 2 * h + 1]};
        store(first_column + half * (kColumns / 2) + 8 * j, pair);
      }
    }
  }

  // Computes some tiles of keys from `tile` on.
  __device__ __forceinline__ void run(Tiles tile, int num_tiles, float scale) {
    const float sign = call.scale < 0.0f ? -1.0f : 1.0f;
    // Cache rows are looked up one tile before their keys are copied.
    Tiles ahead = tile;
    int64_t found[kPasses];
    find_keys(found, ahead, true);
    copy_queries();
    for (int i = -1; i < num_tiles; ++i) {
      if (i >= 0) {
        wait_for_copies<0>();
        __syncthreads();  // this tile has arrived, and the one before it is no longer read
        publish_operands();
        multiply_keys(i % 2);
      }
      if (i + 1 < num_tiles) {
        copy_keys((i + 1) % 2, found);
        ahead.next();
        find_keys(found, ahead, i + 2 < num_tiles);
      }
      commit_copies();
      if (i < 0) continue;
      wait_for_products<0>();
      uint32_t weights[kKeys / 16][4];
      update_softmax(weights, tile, scale, sign);
      add_values(weights, i % 2);
      wait_for_products<0>();
      tile.next();
    }
    wait_for_copies<0>();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(kFullWarp, sum[h], 1);
      sum[h] += __shfl_xor_sync(kFullWarp, sum[h], 2);
    }
  }
};

// Attention of 64 rows, or of one split of their keys. Grid: tiles of rows, splits.
template <class T>
__device__ __forceinline__ void attend_latent_wgmma(const AttentionCall& call) {
  using Attention = LatentWgmma<T>;
  constexpr int kRows = Attention::kRows;
  AETHER_OPERAND_MEMORY(T, memory);
  // Later tokens of a prompt have more keys: their blocks begin first.
  const int tile_of_rows = static_cast<int>(gridDim.x - 1 - blockIdx.x), split = static_cast<int>(blockIdx.y);
  const int first_row = tile_of_rows * kRows;
  typename Attention::Tiles tile(call, first_row, kRows);
  const LatentSplits<kRows, Attention::kKeys> splits(tile);
  if (split >= splits.count) return;
  tile.seek(split * splits.length);
  const float scale = positive_scale(call.scale);
  Attention attention(call, memory, first_row);
  attention.run(tile, splits.num_tiles(split), scale);
  const SplitPartial<kRows, kLatentRank> partial(call.decode_partials,
                                                 static_cast<int64_t>(tile_of_rows) * call.max_decode_splits + split);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = attention.row + 8 * h;
    if (splits.count > 1) {
      if (warp_index() < 4 && lane_index() % 4 == 0) {
        partial.max_exponent(row) = attention.base[h] * scale;
        partial.sum(row) = attention.sum[h];
      }
      attention.for_each_pair(
          h, [&](int column, float2 pair) { *reinterpret_cast<float2*>(partial.out(row) + column) = pair; });
    } else if (first_row + row < call.num_tokens * call.num_heads) {
      const float inverse = 1.0f / attention.sum[h];
      T* const out = static_cast<T*>(call.out) + static_cast<int64_t>(first_row + row) * kLatentRank;
      attention.for_each_pair(h, [&](int column, float2 pair) {
        *reinterpret_cast<uint32_t*>(out + column) = packed<T>(pair.x * inverse, pair.y * inverse);
      });
    }
  }
}

}  // namespace aether
