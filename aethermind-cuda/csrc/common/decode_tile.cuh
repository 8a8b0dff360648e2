// The rows that a block of the decode kernel computes, and the splits of their keys.
#pragma once

#include "common/split_keys.cuh"

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
  int most_rows;
  bool has_rows;

  __device__ __forceinline__ DecodeTile(const AttentionCall& call, int index, int kv_head)
      : queries(), index(index), kv_head(kv_head), group(call.group_size()), most_rows(call.decode_tile_rows) {
    int item = index;
    first_row = 0;
    if (group > most_rows) {
      const int tiles = (group + most_rows - 1) / most_rows;
      item = index / tiles;
      first_row = index % tiles * most_rows;
    }
    if (call.items_are_tokens) {
      // In a decode batch token i is sequence i. All that this guess needs is loaded at once, to pay one memory
      // latency.
      const int first_token = call.cu_seqlens_q[0], end_token = call.cu_seqlens_q[call.num_sequences];
      const Queries own = Queries::of_sequence(call, min(item, call.num_sequences - 1));
      has_rows = item >= first_token && item < end_token;
      queries = own;
      if (has_rows && !(own.first_token == item && own.count == 1)) queries = Queries::of_token(call, item);
    } else {
      queries = Queries::of_sequence(call, item);
      has_rows = queries.count * group <= call.decode_rows && first_row < queries.count * group;
    }
  }

  __device__ __forceinline__ int num_rows() const { return min(most_rows, queries.count * group - first_row); }

  // The [T, H] index of a row.
  __device__ __forceinline__ int64_t head_of_row(int row, int num_heads) const {
    int token = queries.first_token, head = first_row + row;
    if (queries.count > 1) {
      token += head / group;
      head %= group;
    }
    return static_cast<int64_t>(token) * num_heads + kv_head * group + head;
  }

  __device__ __forceinline__ int position_of_row(int row) const {
    if (queries.count == 1) return queries.first_position;
    return queries.first_position + min((first_row + row) / group, queries.count - 1);
  }

  __device__ __forceinline__ KeyRange keys(int window) const {
    return KeyRange::of_positions(position_of_row(0), position_of_row(num_rows() - 1), window);
  }

  __device__ __forceinline__ Splits splits(const AttentionCall& call) const {
    return {keys(call.window), call.num_splits};
  }

  // Index of the first partial of this tile's splits.
  __device__ __forceinline__ int64_t first_partial(const AttentionCall& call) const {
    return (static_cast<int64_t>(index) * call.num_kv_heads + kv_head) * call.num_splits;
  }
};

}  // namespace aether
