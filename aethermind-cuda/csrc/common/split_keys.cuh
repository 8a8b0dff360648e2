// How the keys of a sequence are split among the blocks that attend to them at the same time, and what they leave for
// the kernel that puts the parts together.
#pragma once

#include "common/attention_call.cuh"

namespace aether {

constexpr int kDecodeRows = 16;
constexpr int kShortestSplit = 256;

// Each sequence is split by its own length, into at most `num_splits` parts: a grid is as it was captured, lengths are
// not.
struct Splits {
  KeyRange keys;
  int length;
  int count;

  __device__ __forceinline__ Splits(KeyRange keys, int num_splits) : keys(keys) {
    const int total = keys.end - keys.begin;
    const int even = (total + num_splits - 1) / num_splits;
    length = max(kShortestSplit, (even + 63) / 64 * 64);
    count = (total + length - 1) / length;
  }

  __device__ __forceinline__ KeyRange part(int index) const {
    const int begin = keys.begin + index * length;
    return {begin, min(keys.end, begin + length)};
  }
};

// A tile of 16 rows of one kv head: block (item · tiles + tile, kv head). Items are tokens, or sequences of so few
// queries that their rows fit into the tiles of one query; `has_rows` is false for the others.
struct DecodeTile {
  Queries queries;
  int first_row;
  int kv_head;
  int group;
  bool has_rows;

  __device__ __forceinline__ explicit DecodeTile(const AttentionCall& call)
      : queries(), kv_head(static_cast<int>(blockIdx.y)), group(call.group_size()) {
    const int tiles = (group + kDecodeRows - 1) / kDecodeRows;
    const int item = static_cast<int>(blockIdx.x) / tiles;
    first_row = static_cast<int>(blockIdx.x) % tiles * kDecodeRows;
    if (call.items_are_tokens) {
      has_rows = item >= call.cu_seqlens_q[0] && item < call.cu_seqlens_q[call.num_sequences];
      if (has_rows) queries = Queries::of_token(call, item);
    } else {
      queries = Queries::of_sequence(call, item);
      has_rows = queries.count * group <= tiles * kDecodeRows && first_row < queries.count * group;
    }
  }

  __device__ __forceinline__ int num_rows() const { return min(kDecodeRows, queries.count * group - first_row); }

  // [T, H] index of a row.
  __device__ __forceinline__ int64_t head_of_row(int row, int num_heads) const {
    const int packed = first_row + row;
    return static_cast<int64_t>(queries.first_token + packed / group) * num_heads + kv_head * group + packed % group;
  }

  __device__ __forceinline__ int position_of_row(int row) const {
    return queries.first_position + min((first_row + row) / group, queries.count - 1);
  }

  __device__ __forceinline__ KeyRange keys(int window) const {
    return KeyRange::of_positions(position_of_row(0), position_of_row(num_rows() - 1), window);
  }
};

// One split's part: 16 rows of kHeadDim sums, then their largest scores, then their sums of weights.
template <int kHeadDim>
struct Partial {
  static constexpr int kSize = kDecodeRows * (kHeadDim + 2);
  float* values;

  __device__ __forceinline__ Partial(const AttentionCall& call, int split)
      : values(call.partials +
               ((static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * call.num_splits + split) * kSize) {}

  __device__ __forceinline__ float* out(int row) const { return values + row * kHeadDim; }
  __device__ __forceinline__ float& largest(int row) const { return values[kDecodeRows * kHeadDim + row]; }
  __device__ __forceinline__ float& sum(int row) const { return values[kDecodeRows * (kHeadDim + 1) + row]; }
};

}  // namespace aether
