// K-shift: rotates the keys of whole cache blocks in place by the angles of a RoPE table, one table row per
// block; a table narrower than a head rotates its first elements.
#pragma once

#include "kernels/kv_cache_write.h"
#include "kernels/kv_quantization.h"
#include "kernels/rope.h"

namespace aether::cpu::AETHER_ISA {

// Calls `rotate(row, table)` for the filled slots of the blocks; `row` counts rows of head_dim in the cache.
template <class RotateFn>
AETHER_INLINE void for_each_filled_row(const am_tensor* in, const am_team* team, RotateFn rotate) {
  const CacheLayout cache(in[0]);
  const int32_t *blocks = data<const int32_t>(in[1]), *num_tokens = data<const int32_t>(in[2]);
  const Range items = share(team, in[1].shape[0] * cache.num_heads);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t i = item / cache.num_heads, head = item % cache.num_heads;
    const int64_t first = (blocks[i] * cache.num_heads + head) * cache.block_size;
    const float* table = data<const float>(in[3]) + i * in[3].shape[1];
    for (int64_t row = first; row < first + num_tokens[i]; ++row) rotate(row, table);
  }
}

template <class T>
AETHER_INLINE void rotate_in_place(T* x, const float* table, int64_t rotary_dim, bool is_interleaved) {
  if (is_interleaved) {
    rotate_interleaved(x, table, rotary_dim, x);
  } else {
    rotate_halves(x, table, rotary_dim, x);
  }
}

template <class T>
void shift_keys(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t head_dim = in[0].shape[3], rotary_dim = in[3].shape[1];
  for_each_filled_row(in, team, [&](int64_t row, const float* table) {
    rotate_in_place(data<T>(out[0]) + row * head_dim, table, rotary_dim, attrs[0].i != 0);
  });
}

// Rotates the codes and quantises them again; the factor by which this rescales them multiplies their scale.
inline void shift_keys_quantized(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t head_dim = in[0].shape[3], rotary_dim = in[3].shape[1];
  const int32_t dtype = in[0].dtype;
  float* key = static_cast<float*>(team->scratch);
  for_each_filled_row(in, team, [&](int64_t row, const float* table) {
    Code* codes = data<Code>(out[0]) + row * head_dim;
    dequantize_row(dtype, codes, head_dim, key);
    rotate_in_place(key, table, rotary_dim, attrs[0].i != 0);
    data<float>(out[1])[row] *= quantize_row(dtype, key, head_dim, codes);
  });
}

inline size_t shift_keys_quantized_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  return static_cast<size_t>(round_up(in[0].shape[3], kLanes)) * sizeof(float);
}

}  // namespace aether::cpu::AETHER_ISA
