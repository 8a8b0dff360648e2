// Paged attention of sequences with many queries by wgmma: FlashAttention-3 (Shah et al. 2024) with block
// barriers instead of warp specialisation.
//
// A block computes 128 rows of one kv head over kKeys keys at a time; each of its two warpgroups has 64 rows. They
// alternate, phase by phase: while one multiplies, the other turns its scores into weights and copies keys or values.
// In its step j a warpgroup multiplies queries by keys j + 1, and the weights of tile j by its values. Warpgroup g does
// so in phase 2 (j + 1) + g.
#pragma once

#include "common/async_copy.cuh"
#include "common/prefill_tile.cuh"
#include "common/wgmma.cuh"

namespace aether {

template <class T, int kHeadDim, int kKeys>
struct WgmmaAttention {
  static constexpr int kGroupThreads = 128;
  static constexpr int kChunks = kHeadDim / kTileDepth;
  static constexpr int kRowPieces = kHeadDim / Vector<T>::size;
  static constexpr int kRowsPerPass = kGroupThreads / kRowPieces;
  static constexpr int kPasses = kKeys / kRowsPerPass;
  static constexpr int kStages = 3;
  static constexpr int kQueryPieces = kPrefillRows * kRowPieces;
  static constexpr int kKeyPieces = kKeys * kRowPieces;
  static constexpr int kOperandBytes = (kQueryPieces + 2 * kStages * kKeyPieces) * kVectorBytes;
  static constexpr float kRescaleThreshold = 8.0f;  // of exponents: see SoftmaxRows
  static_assert(kKeys == kGroupThreads && kPrefillRows == kGroupThreads, "a thread for each of them");
  static_assert(kRowsPerPass % 8 == 0, "passes have the same swizzle");
  using Piece = Vector<T>;

  // Data of a block that is in shared memory after the operands, because there are too few registers.
  struct Shared {
    PrefillWork work;
    int cache_rows[kStages][kKeys];  // of the keys of three tiles
    int query_rows[kPrefillRows];    // the [T, H] index of a row, negative where there is none
  };
  static_assert(sizeof(Shared) == 2112, "_WGMMA_STATE_BYTES of kernels/_paged_attention.py");

  const AttentionCall& call;
  Piece* memory;
  Shared& shared;
  int group, thread, row, piece, target;

  __device__ __forceinline__ WgmmaAttention(const AttentionCall& call, Piece* memory, Shared& shared)
      : call(call),
        memory(memory),
        shared(shared),
        group(__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kGroupThreads, 0)),
        thread(static_cast<int>(threadIdx.x) % kGroupThreads),
        row(thread / kRowPieces),
        piece(thread % kRowPieces),
        target(swizzled_piece(row, piece % kPiecesOfRow)) {}

  __device__ __forceinline__ Piece* keys_at(int index) const {
    return memory + kQueryPieces + index % kStages * kKeyPieces;
  }
  __device__ __forceinline__ Piece* values_at(int index) const {
    return memory + kQueryPieces + (kStages + index % kStages) * kKeyPieces;
  }

  // Copies this warpgroup's queries.
  __device__ __forceinline__ void copy_queries() const {
    const int first = group * 64 + row;
    Piece* to = memory + (piece / kPiecesOfRow * kPrefillRows + group * 64) * kPiecesOfRow + target;
#pragma unroll
    for (int i = 0; i < 64 / kRowsPerPass; ++i) {
      const int query = shared.query_rows[first + i * kRowsPerPass];
      const T* source = static_cast<const T*>(call.q) + static_cast<int64_t>(max(query, 0)) * kHeadDim;
      copy_async_16(to + i * kRowsPerPass * kPiecesOfRow, source + piece * Piece::size, query >= 0);
    }
  }

  // The cache's row of key `thread` of a tile; keys beyond the last one repeat it.
  __device__ __forceinline__ int cache_row_of(const PagedRows& rows, int index) const {
    const KeyRange& keys = shared.work.keys;
    return static_cast<int>(rows(min(keys.begin + index * kKeys + thread, keys.end - 1)));
  }

  // Finds the rows of a tile whose keys are copied in the next phase but one.
  __device__ __forceinline__ void find_rows(const PagedRows& rows, int phase) const {
    if (group == 0) {
      const int index = phase / 2 + 3;
      shared.cache_rows[index % kStages][thread] = cache_row_of(rows, index);
    }
  }

  // Copies a tile of keys or values with the threads of one warpgroup.
  __device__ __forceinline__ void copy_tile(Piece* stage, const void* cache, int index) const {
    int rows[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) rows[i] = shared.cache_rows[index % kStages][row + i * kRowsPerPass];
    Piece* to = stage + piece / kPiecesOfRow * kKeys * kPiecesOfRow + target;
    const Piece* source = static_cast<const Piece*>(cache) + piece;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      copy_async_16(to + i * kRowsPerPass * kPiecesOfRow, source + static_cast<int64_t>(rows[i]) * kRowPieces, true);
    }
  }

  __device__ __forceinline__ void add_scores(float (&scores)[kKeys / 2], int index) const {
    const Piece* queries = memory + group * 64 * kPiecesOfRow;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      multiply_tiles<T>(scores, queries + c * kPrefillRows * kPiecesOfRow, keys_at(index) + c * kKeys * kPiecesOfRow,
                        c > 0);
    }
  }

  __device__ __forceinline__ void add_values(float (&out)[kHeadDim / 2], const uint32_t (&weights)[kKeys / 16][4],
                                             int index) const {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      add_product<T, kKeys>(out, weights[k], values_at(index), 16 * k);
    }
  }

  // Turns the scores of a tile into weights and packs them; rescales earlier sums if the maximum has grown by more than
  // the threshold.
  struct Softmax {
    float base[2] = {kMinusInfinity, kMinusInfinity};
    float sum[2] = {};

    __device__ __forceinline__ void update(float (&scores)[kKeys / 2], float (&out)[kHeadDim / 2],
                                           uint32_t (&weights)[kKeys / 16][4], float scale) {
      float row_max[2];
      bool needs_rescale = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row_max[h] = base[h];
#pragma unroll
        for (int r = 2 * h; r < kKeys / 2; r += 4) row_max[h] = fmaxf(row_max[h], fmaxf(scores[r], scores[r + 1]));
        row_max[h] = fmaxf(row_max[h], __shfl_xor_sync(kFullWarp, row_max[h], 1));
        row_max[h] = fmaxf(row_max[h], __shfl_xor_sync(kFullWarp, row_max[h], 2));
        needs_rescale |= (row_max[h] - base[h]) * scale > kRescaleThreshold;  // false before the first visible key
      }
      if (__any_sync(kFullWarp, needs_rescale)) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float rescale = row_max[h] == kMinusInfinity ? 0.0f : fast_exp2((base[h] - row_max[h]) * scale);
          base[h] = row_max[h];
          sum[h] *= rescale;
#pragma unroll
          for (int r = 2 * h; r < kHeadDim / 2; r += 4) {
            out[r] *= rescale;
            out[r + 1] *= rescale;
          }
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float power = base[h] == kMinusInfinity ? 0.0f : base[h] * scale;
#pragma unroll
        for (int r = 2 * h; r < kKeys / 2; r += 4) {
          const float first = fast_exp2(fmaf(scores[r], scale, -power));
          const float second = fast_exp2(fmaf(scores[r + 1], scale, -power));
          sum[h] += first + second;
          weights[r / 8][r / 2 % 4] = packed<T>(first, second);
        }
      }
    }
  };

  __device__ __forceinline__ void run() const {
    const PrefillTile& tile = shared.work.tile;
    const PagedRows cache_rows = call.rows(tile.queries.sequence, tile.kv_head);
    shared.cache_rows[group][thread] = cache_row_of(cache_rows, group);
    if (group == 0) {
      shared.cache_rows[2][thread] = cache_row_of(cache_rows, 2);
    } else {
      const bool is_row = thread < tile.num_rows();
      shared.query_rows[thread] = is_row ? static_cast<int>(tile.head_of_row(thread, call.num_heads)) : -1;
    }
    __syncthreads();
    copy_queries();
    if (group == 0) copy_tile(keys_at(0), call.k_cache, 0);
    commit_copies();
    if (group == 0) {
      copy_tile(values_at(0), call.v_cache, 0);
    } else {
      copy_tile(keys_at(1), call.k_cache, 1);
    }
    commit_copies();

    const KeyRange keys = shared.work.keys;
    const int num_tiles = (keys.end - keys.begin + kKeys - 1) / kKeys;
    const int first_row = warp_index() * 16 + lane_index() / 4;  // this thread's rows are it and the 8th after it
    const int positions[2] = {tile.position_of_row(first_row), tile.position_of_row(first_row + 8)};
    // The keys that all rows attend to.
    const KeyRange seen = {KeyRange::of_position(tile.position_of_row(tile.num_rows() - 1), call.window).begin,
                           KeyRange::of_position(tile.position_of_row(0), call.window).end};
    const float scale = positive_scale(call.scale);
    float out[kHeadDim / 2], scores[kKeys / 2];
#pragma unroll
    for (int r = 0; r < kHeadDim / 2; ++r) out[r] = 0.0f;
    uint32_t weights[kKeys / 16][4] = {};
    Softmax softmax;

    wait_for_copies<1>();
    publish_operands();
    __syncthreads();
    for (int phase = 0; phase < 2 * num_tiles + 2; ++phase) {
      const int step = (phase - group) / 2 - 1;  // of the products; before the first phase of group 1, of nothing
      if (phase % 2 == group) {
        publish_operands();
        if (step < 0) {
          begin_products();
          add_scores(scores, 0);
          commit_products();
          find_rows(cache_rows, phase);
          wait_for_products<0>();
        } else if (step + 1 < num_tiles) {
          begin_products();
          add_scores(scores, step + 1);
          add_values(out, weights, step);
          commit_products();
          find_rows(cache_rows, phase);
          wait_for_products<0>();
        } else {
          begin_products();
          add_values(out, weights, step);
          commit_products();
          wait_for_products<0>();
        }
      } else {
        const int ahead = phase / 2 + (group == 0 ? 1 : 2);  // of values, or of keys
        if (ahead < num_tiles) {
          copy_tile(group == 0 ? values_at(ahead) : keys_at(ahead), group == 0 ? call.v_cache : call.k_cache, ahead);
        }
        commit_copies();
        const int index = (phase - 1 - group) / 2;
        if (phase > group && index < num_tiles) {
          const int first = keys.begin + index * kKeys;
          if (!(seen.has(first) && seen.has(first + kKeys - 1))) {
#pragma unroll
            for (int r = 0; r < kKeys / 2; ++r) {
              const KeyRange visible = KeyRange::of_position(positions[r / 2 % 2], call.window);
              scores[r] = visible.has(first + r / 4 * 8 + lane_index() % 4 * 2 + r % 2) ? scores[r] : kMinusInfinity;
            }
          }
          softmax.update(scores, out, weights, scale);
        }
      }
      if (phase % 2 == 1) {
        wait_for_copies<1>();
        publish_operands();
      }
      __syncthreads();
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = softmax.sum[h] + __shfl_xor_sync(kFullWarp, softmax.sum[h], 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      const int query = shared.query_rows[first_row + 8 * h];
      if (query < 0) continue;
      const float inverse = 1.0f / sum;
      T* to = static_cast<T*>(call.out) + static_cast<int64_t>(query) * kHeadDim + lane_index() % 4 * 2;
#pragma unroll
      for (int j = 0; j < kHeadDim / 8; ++j) {
        const uint32_t pair = packed<T>(out[4 * j + 2 * h] * inverse, out[4 * j + 2 * h + 1] * inverse);
        *reinterpret_cast<uint32_t*>(to + 8 * j) = pair;
      }
    }
  }
};

// Dynamic shared memory: operands, then `Shared`. Keys are not split.
template <class T, int kHeadDim, int kKeys>
__device__ __forceinline__ void paged_attention_wgmma(const AttentionCall& call) {
  using Attention = WgmmaAttention<T, kHeadDim, kKeys>;
  AETHER_OPERAND_MEMORY(T, memory);
  auto& shared = *reinterpret_cast<typename Attention::Shared*>(memory + Attention::kOperandBytes / kVectorBytes);
  if (warp_index() == 0) {
    // Consecutive blocks compute different heads, so that the longest tiles of all heads come first.
    const int item = static_cast<int>(blockIdx.x);
    const PrefillWork found = PrefillWork::of(call, item / call.num_kv_heads, item % call.num_kv_heads);
    if (lane_index() == 0) shared.work = found;
  }
  __syncthreads();
  if (shared.work.num_splits > 0) {
    Attention(call, memory, shared).run();
  }
}

}  // namespace aether
