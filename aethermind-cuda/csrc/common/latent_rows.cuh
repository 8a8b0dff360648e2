// The rows of latent attention (common/latent_attention.cuh), the keys that they attend to, and the splits of these
// keys.
//
// A block computes kRows consecutive rows of q [T · H, 576], heads of one token or of several, and reads the keys of
// their sequences in tiles of kKeys, one sequence after the other.
#pragma once

#include "common/attention_tile.cuh"
#include "common/split_kv.cuh"

namespace aether {

constexpr int kLatentRank = 512;
constexpr int kLatentKeyDim = kLatentRank + 64;  // the latent vector, then the rotated key
constexpr int kLatentThreads = 256;
constexpr int kMinLatentSplitKeys = 64;

// The sequence of a row's token (-1 for rows of padding), and the token's position among the keys.
struct LatentRow {
  int sequence = -1, position = 0;

  __device__ __forceinline__ LatentRow(const AttentionCall& call, int row) {
    const int token = row / call.num_heads;
    if (token >= call.num_tokens) return;
    const int found = sequence_of_token(call, token), end = call.cu_seqlens_q[found + 1];
    if (token < call.cu_seqlens_q[found] || token >= end) return;
    sequence = found;
    position = call.seqlens_k[found] - (end - token);
  }
};

// The tiles of keys that the rows of a block attend to: those of each of its sequences, one sequence after the other.
template <int kKeys>
struct LatentKeyTiles {
  const AttentionCall& call;
  int first_token, last_token;
  int first_sequence, last_sequence;
  int sequence = 0, first = 0, end = 0;  // the current tile: keys [first, min(first + kKeys, end)) of a sequence

  __device__ __forceinline__ LatentKeyTiles(const AttentionCall& call, int first_row, int num_rows)
      : call(call),
        first_token(first_row / call.num_heads),
        last_token((min(first_row + num_rows, call.num_tokens * call.num_heads) - 1) / call.num_heads),
        first_sequence(sequence_of_token(call, first_token)),
        last_sequence(last_token == first_token ? first_sequence : sequence_of_token(call, last_token)) {}

  // The number of keys of a sequence that its last token in the block attends to; 0 if it has no token in the block.
  __device__ __forceinline__ int keys_of(int index) const {
    const int begin = call.cu_seqlens_q[index], end_token = call.cu_seqlens_q[index + 1];
    const int last = min(end_token - 1, last_token);
    return last < max(begin, first_token) ? 0 : call.seqlens_k[index] - (end_token - 1 - last);
  }

  __device__ __forceinline__ static int tiles_of(int keys) { return (keys + kKeys - 1) / kKeys; }

  __device__ __forceinline__ int count() const {
    int total = 0;
    for (int index = first_sequence; index <= last_sequence; ++index) total += tiles_of(keys_of(index));
    return total;
  }

  // Moves to the tile of this index, which exists.
  __device__ __forceinline__ void seek(int index) {
    sequence = first_sequence;
    end = keys_of(sequence);
    while (index >= tiles_of(end)) {
      index -= tiles_of(end);
      end = keys_of(++sequence);
    }
    first = index * kKeys;
  }

  // The keys of the tile that a row sees: those before the index.
  __device__ __forceinline__ int visible_to(const LatentRow& row) const {
    return row.sequence == sequence ? row.position + 1 - first : 0;
  }

  // Moves to the next tile; `sequence` is past the last one where there is none.
  __device__ __forceinline__ void next() {
    first += kKeys;
    if (first < end) return;
    first = end = 0;
    while (end == 0 && ++sequence <= last_sequence) end = keys_of(sequence);
  }
};

// How the tiles of a block's rows are split; the number of splits depends on the device's sequence lengths. Rows of
// decodes are split evenly. Those of prompts have different numbers of keys: there, a split is the share of one of
// `max_prefill_splits` blocks, and a block with less than two shares is not split. All lanes of a warp call it.
template <int kRows, int kKeys>
struct LatentSplits {
  int total, length, count;

  __device__ __forceinline__ LatentSplits(const LatentKeyTiles<kKeys>& tiles)
      : total(tiles.count()), length(total), count(total == 0 ? 0 : 1) {
    const AttentionCall& call = tiles.call;
    if (total == 0 || call.max_decode_splits == 1) return;
    int wanted = call.max_decode_splits;
    if (call.max_prefill_splits > 0) {
      const int share = (total_of_all(call) + call.max_prefill_splits - 1) / call.max_prefill_splits;
      wanted = min(wanted, max(1, total / max(share, 1)));
    }
    length = max(kMinLatentSplitKeys / kKeys, (total + wanted - 1) / wanted);
    count = (total + length - 1) / length;
  }

  // About the number of tiles of all blocks.
  __device__ __forceinline__ static int total_of_all(const AttentionCall& call) {
    int sum = 0;
    for (int index = lane_index(); index < call.num_sequences; index += kWarpSize) {
      const int rows = (call.cu_seqlens_q[index + 1] - call.cu_seqlens_q[index]) * call.num_heads;
      sum += (rows + kRows - 1) / kRows * LatentKeyTiles<kKeys>::tiles_of(call.seqlens_k[index]);
    }
    return __reduce_add_sync(kFullWarp, sum);
  }

  __device__ __forceinline__ int num_tiles(int split) const { return min(length, total - split * length); }
};

// Merges the partials of row blockIdx.x, 128 columns from blockIdx.y · 128 on.
template <class T, int kRows, int kKeys>
__device__ __forceinline__ void combine_latent(const AttentionCall& call) {
  const int row = static_cast<int>(blockIdx.x), tile = row / kRows;
  const LatentSplits<kRows, kKeys> splits(LatentKeyTiles<kKeys>(call, tile * kRows, kRows));
  if (splits.count <= 1) return;
  combine_row<T, kRows, kLatentRank, 4>(static_cast<T*>(call.out) + static_cast<int64_t>(row) * kLatentRank,
                                        kLatentRank, call.decode_partials,
                                        static_cast<int64_t>(tile) * call.max_decode_splits, splits.count, row % kRows,
                                        kMinusInfinity, static_cast<int>(blockIdx.y) * 4 * kWarpSize);
}

}  // namespace aether
