// Attention of queries to keys and values given as tensors, without a cache.
#pragma once

#include "kernels/flash_attention.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void attention(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int32_t ndim = in[0].ndim;
  const int64_t num_queries = in[0].shape[ndim - 3], num_heads = in[0].shape[ndim - 2];
  const int64_t num_keys = in[1].shape[ndim - 3], num_kv_heads = in[1].shape[ndim - 2];
  if (num_elements(out[0]) == 0) return;
  const AttentionLayout<T, T> layout(num_heads, num_kv_heads, last_dim(in[0]), last_dim(in[0]));
  const KeysAndValues<T> stored = {data<const T>(in[1]), data<const T>(in[2]), nullptr, nullptr};
  const int64_t row_stride = num_heads * layout.head_dim;
  const AttentionScratch<T, T> scratch(layout, num_heads, team->scratch);
  const int64_t num_batches = num_elements(in[0]) / (num_queries * row_stride);
  const int64_t num_query_blocks = ceil_div(num_queries, layout.queries);
  const float scale = static_cast<float>(attrs[0].f);
  const bool is_causal = attrs[1].i != 0;

  for_each_claimed(team, num_batches * num_kv_heads * num_query_blocks, [&](int64_t item) {
    const int64_t first = (num_query_blocks - 1 - item % num_query_blocks) * layout.queries;
    const int64_t head = item / num_query_blocks % num_kv_heads, batch = item / num_query_blocks / num_kv_heads;
    const int64_t offset = (batch * num_queries + first) * row_stride + head * layout.group * layout.head_dim;
    // Without a causal mask, the position of every query is after all keys.
    const int64_t position = is_causal ? num_keys - num_queries + first : num_keys;
    const QueryBlock query_block = {smaller(layout.queries, num_queries - first), position, num_keys, 0};
    const auto find_rows = [&](int64_t key, int64_t count, int64_t* rows) {
      for (int64_t i = 0; i < count; ++i) rows[i] = (batch * num_keys + key + i) * num_kv_heads + head;
    };
    const auto no_next_block = [](KeyBlockRows&) {};
    attend(data<const T>(in[0]) + offset, data<T>(out[0]) + offset, query_block, stored, find_rows, no_next_block,
           scale, {}, layout, scratch);
  });
}

template <class T>
size_t attention_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  const int32_t ndim = in[0].ndim;
  const int64_t head_dim = last_dim(in[0]);
  return AttentionLayout<T, T>(in[0].shape[ndim - 2], in[1].shape[ndim - 2], head_dim, head_dim).bytes();
}

}  // namespace aether::cpu::AETHER_ISA
