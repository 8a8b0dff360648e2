// The tile scheduler of the decode kernel: which query rows and which split of their keys a block computes.
#pragma once

#include "common/split_kv.cuh"

namespace aether {

constexpr int kDecodeRows = 16;  // capacity of a partial

// The `index`-th tile of 8 or 16 rows of one kv head: item · tiles + tile. An item is a token, or a sequence whose rows
// fit into the tiles of one query; `has_rows` is false for other sequences.
struct DecodeTile {
  Queries queries;
  int first_row;
  int index;
  int kv_head;
  int group;
  int tile_rows;
  bool has_rows;

  __device__ __forceinline__ DecodeTile(const AttentionCall& call, int index, int kv_head)
      : queries(), index(index), kv_head(kv_head), group(call.group_size()), tile_rows(call.decode_tile_rows) {
    int item = index;
    first_row = 0;
    if (group > tile_rows) {
      const int tiles = (group + tile_rows - 1) / tile_rows;
      item = index / tiles;
      first_row = index % tiles * tile_rows;
    }
    if (call.items_are_tokens) {
      // In a decode batch token i is sequence i. All that this assumption needs is loaded at once, to pay one memory
      // latency.
      const int first_token = call.cu_seqlens_q[0], end_token = call.cu_seqlens_q[call.num_sequences];
      const Queries assumed = Queries::of_sequence(call, min(item, call.num_sequences - 1));
      has_rows = item >= first_token && item < end_token;
      queries = assumed;
      if (has_rows && !(assumed.first_token == item && assumed.count == 1)) queries = Queries::of_token(call, item);
    } else {
      queries = Queries::of_sequence(call, item);
      has_rows = queries.count * group <= call.decode_rows && first_row < queries.count * group;
    }
  }

  __device__ __forceinline__ int num_rows() const { return min(tile_rows, queries.count * group - first_row); }

  // The [T, H] index of a row.
  __device__ __forceinline__ int64_t head_of_row(int row, int num_heads) const {
    int token = queries.first_token, head = first_row + row;
    if (queries.count > 1) {
      token += head / group;
      head %= group;
    }
    return static_cast<int64_t>(token) * num_heads + kv_head * group + head;
  }

  __device__ __forceinline__ int query_head_of_row(int row) const {
    return kv_head * group + (first_row + row) % group;
  }

  __device__ __forceinline__ int position_of_row(int row) const {
    if (queries.count == 1) return queries.first_position;
    return queries.first_position + min((first_row + row) / group, queries.count - 1);
  }

  __device__ __forceinline__ KeyRange keys(int window) const {
    return KeyRange::of_positions(position_of_row(0), position_of_row(num_rows() - 1), window);
  }

  __device__ __forceinline__ KvSplits splits(const AttentionCall& call) const {
    return {keys(call.window), call.max_decode_splits};
  }

  // Index of the first partial of this tile's splits.
  __device__ __forceinline__ int64_t first_partial(const AttentionCall& call) const {
    return (static_cast<int64_t>(index) * call.num_kv_heads + kv_head) * call.max_decode_splits;
  }
};

}  // namespace aether
