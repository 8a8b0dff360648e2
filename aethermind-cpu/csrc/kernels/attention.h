// Attention of queries to keys and values that lie beside them, without a cache.
#pragma once

#include "kernels/paged_attention.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void attention(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int32_t ndim = in[0].ndim;
  const int64_t num_queries = in[0].shape[ndim - 3], num_heads = in[0].shape[ndim - 2];
  const int64_t num_keys = in[1].shape[ndim - 3], num_kv_heads = in[1].shape[ndim - 2];
  if (num_elements(out[0]) == 0) return;
  const AttentionScratch<T> layout(num_heads, num_kv_heads, last_dim(in[0]));
  const int64_t row_stride = num_heads * layout.head_dim, key_stride = num_kv_heads * layout.head_dim;
  const int64_t num_batches = num_elements(in[0]) / (num_queries * row_stride);
  const int64_t num_runs = divide_up(num_queries, layout.queries);
  const float scale = static_cast<float>(attrs[0].f);
  const bool is_causal = attrs[1].i != 0;

  for_each_claimed(team, num_batches * num_kv_heads * num_runs, [&](int64_t unit) {
    const int64_t first = (num_runs - 1 - unit % num_runs) * layout.queries;
    const int64_t head = unit / num_runs % num_kv_heads, batch = unit / num_runs / num_kv_heads;
    const int64_t offset = (batch * num_queries + first) * row_stride + head * layout.group * layout.head_dim;
    const int64_t key_offset = batch * num_keys * key_stride + head * layout.head_dim;
    // A query behind all keys sees every one of them.
    const int64_t position = is_causal ? num_keys - num_queries + first : num_keys;
    attend(
        data<const T>(in[0]) + offset, data<const T>(in[1]) + key_offset, data<const T>(in[2]) + key_offset,
        data<T>(out[0]) + offset, row_stride, [&](int64_t key) { return key * key_stride; }, num_keys, position,
        smaller(layout.queries, num_queries - first), scale, 0, layout, team->scratch);
  });
}

template <class T>
size_t attention_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  const int32_t ndim = in[0].ndim;
  return AttentionScratch<T>(in[0].shape[ndim - 2], in[1].shape[ndim - 2], last_dim(in[0])).bytes();
}

}  // namespace aether::cpu::AETHER_ISA
