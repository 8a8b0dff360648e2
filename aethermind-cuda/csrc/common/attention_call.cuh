// Kernel arguments of paged attention, and the mapping of blocks to sequences, queries and visible keys.
#pragma once

#include "common/fast_math.cuh"
#include "common/kv_quantization.cuh"
#include "common/memory.cuh"
#include "common/paged_cache.cuh"
#include "common/types.cuh"

namespace aether {

// The factor of scores, so that softmax weights are powers of two: log2(e) times the operator's scale. It is positive,
// since the largest score must have the largest weight: a negative scale negates queries instead (`query_sign`), and a
// scale of zero becomes so small that all weights are equal, because 0 times a masked key's -inf would be NaN.
__device__ __forceinline__ float positive_scale(float scale) { return fmaxf(fabsf(scale) * 1.44269504f, 1e-30f); }

// A soft cap of scores that are products, before `positive_scale`: softcap · tanh(s / softcap) of s = scale · score,
// computed as softcap - 2 softcap / (1 + e^(2 s / softcap)), whose error is absolute, as that of a score may be.
struct ScoreCap {
  float cap;
  float factor;

  __device__ __forceinline__ ScoreCap(float softcap, float scale)
      : cap(softcap * kLog2E / positive_scale(scale)), factor(2.0f * positive_scale(scale) / softcap) {}

  __device__ __forceinline__ float operator()(float score) const {
    return cap - fast_divide(2.0f * cap, 1.0f + fast_exp2(score * factor));
  }
};

// The layout of `AttentionCall` in kernels/_paged_attention.py.
struct AttentionCall {
  void* out;            // [T, H, C]
  const void* q;        // [T, H, C]
  const void* k_cache;  // [N, K, P, C], elements or codes
  const void* v_cache;
  const float* k_scale;  // [N, K, P], of codes
  const float* v_scale;
  const int* cu_seqlens_q;  // [S + 1]
  const int* seqlens_k;     // [S]
  const int* block_tables;  // [S, M]
  const float* sinks;       // [H], may be null, like slopes
  const float* slopes;      // [H]
  float* decode_partials;   // partial results of split keys, for the combine kernel
  float* prefill_partials;
  float scale;
  float softcap;  // 0: none
  int num_tokens;
  int num_sequences;
  int num_heads;
  int num_kv_heads;
  int group;  // query heads per kv head, precomputed: a division would delay the first load
  int head_dim;
  int num_blocks;
  int block_size;
  int blocks_per_sequence;
  int window;
  int code_type;
  int max_decode_splits;   // decode: largest number of splits of a sequence
  int items_are_tokens;    // decode: whether an item is a token rather than a sequence
  int decode_tile_rows;    // decode: rows of a tile, 8 or 16
  int decode_rows;         // the decode kernel takes sequences of at most this many rows (queries x heads of a group)
  int max_prefill_splits;  // prefill: largest number of splits of all tiles of one kv head; 0: no tile is split
  int combine_decode_blocks;  // number of blocks of the combine kernel that merge rows of the decode kernel

  __device__ __forceinline__ int group_size() const { return group; }

  // Whether scores are more than scaled products: capped, or with a slope of the distance.
  __device__ __forceinline__ bool transforms_scores() const { return softcap > 0.0f || slopes != nullptr; }

  // The exponent (of 2) of a head's sink in the softmax's denominator.
  __device__ __forceinline__ float sink_exponent(int head) const {
    return sinks == nullptr ? -__builtin_huge_valf() : sinks[head] * kLog2E;
  }

  // The slope of a head for scores that are products, before `positive_scale`.
  __device__ __forceinline__ float score_slope(int head) const { return slopes[head] * kLog2E / positive_scale(scale); }

  __device__ __forceinline__ PagedRows rows(int sequence, int head) const {
    return PagedRows(block_tables + static_cast<int64_t>(sequence) * blocks_per_sequence, head, num_kv_heads,
                     block_size);
  }
};

// The sequence of a token: the last one that begins at or before it and has queries.
__device__ __forceinline__ int sequence_of_token(const AttentionCall& call, int token) {
  const int* begins = call.cu_seqlens_q;
  if (token < call.num_sequences && begins[token] == token && begins[token + 1] > token) {
    return token;  // one query per sequence
  }
  int low = 0, high = call.num_sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begins[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Consecutive queries of one sequence. The heads of a group are adjacent rows, because they read the same keys: row r
// is head r % group of query r / group.
struct Queries {
  int sequence;
  int first_token;
  int count;
  int first_position;  // of the first query among the keys; it sees first_position + 1 of them

  __device__ __forceinline__ static Queries of_sequence(const AttentionCall& call, int sequence) {
    const int begin = call.cu_seqlens_q[sequence];
    const int count = call.cu_seqlens_q[sequence + 1] - begin;
    return {sequence, begin, count, call.seqlens_k[sequence] - count};
  }

  __device__ __forceinline__ static Queries of_token(const AttentionCall& call, int token) {
    const int sequence = sequence_of_token(call, token);
    const Queries all = of_sequence(call, sequence);
    return {sequence, token, 1, all.first_position + token - all.first_token};
  }
};

// The keys [begin, end) that at least one row attends to.
struct KeyRange {
  int begin;
  int end;

  __device__ __forceinline__ static KeyRange of_positions(int first, int last, int window) {
    return {window > 0 ? max(0, first - window + 1) : 0, last + 1};
  }

  __device__ __forceinline__ static KeyRange of_position(int position, int window) {
    return of_positions(position, position, window);
  }

  __device__ __forceinline__ bool has(int key) const { return key >= begin && key < end; }
};

}  // namespace aether
