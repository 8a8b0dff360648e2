// The epilogue of the QKV projection: QK norm, rotary embedding and KV cache write of q[T, H, C], k and v[T, K, C].
// Here a warp processes one head of the token blockIdx.x; in common/wide_heads.cuh a few lanes do, for heads of whole
// 16-byte vectors.
#pragma once

#include "common/head_row.cuh"
#include "common/paged_cache.cuh"

namespace aether {

// The layout of `_ProjectedHeads` in kernels/qkv_rope_cache_write.py. Rows of projected heads are `q_stride` and
// `kv_stride` elements apart, so all three may be columns of one matrix.
struct ProjectedHeads {
  void* q;                  // [T, H, C]
  const void* projected_q;  // [T, H, C], may be q
  const void* k;            // [T, K, C]
  const void* v;
  void* k_cache;
  void* v_cache;
  float* k_scale;  // [N, K, P], of a quantised cache
  float* v_scale;
  const void* q_norm;  // may be null, like k_norm
  const void* k_norm;
  const float* rope_table;
  const int64_t* slot_mapping;
  float eps;
  float weight_offset;  // added to the weights of norms
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int rotary_dim;  // columns of rope_table
  int block_size;
  int code_type;
  int num_tokens;
  int q_stride;
  int kv_stride;
  int log2_lanes;  // log2 of the lanes per head; negative: a whole warp
};

template <class T>
__device__ __forceinline__ HeadRow read_head(const void* heads, int64_t first, int head_dim, int rotary_dim) {
  const T* source = static_cast<const T*>(heads) + first;
  HeadRow row(head_dim, rotary_dim, false);
  row.read([&](int i) { return to_float(source[i]); });
  return row;
}

template <class T>
__device__ __forceinline__ void write_head(HeadRow& row, void* heads, int64_t index) {
  T* target = static_cast<T*>(heads) + index * row.head_dim;
  row.write([&](int i, float value) { target[i] = from_float<T>(value); });
}

template <class T>
__device__ __forceinline__ void normalize_and_rotate(HeadRow& row, const void* norm, const ProjectedHeads& call) {
  if (norm != nullptr) {
    row.normalize(static_cast<const T*>(norm), call.eps, call.weight_offset);
  }
  row.rotate(call.rope_table + static_cast<int64_t>(blockIdx.x) * call.rotary_dim);
}

// Heads are numbered from queries over keys to values.
template <class T, bool kIsQuantized>
__device__ __forceinline__ void qkv_epilogue_per_warp(const ProjectedHeads& call) {
  const int64_t token = blockIdx.x;
  const int head_index = static_cast<int>(blockIdx.y * (blockDim.x / kWarpSize)) + warp_index();
  if (head_index < call.num_heads) {
    const int64_t first = token * call.q_stride + head_index * call.head_dim;
    HeadRow row = read_head<T>(call.projected_q, first, call.head_dim, call.rotary_dim);
    normalize_and_rotate<T>(row, call.q_norm, call);
    write_head<T>(row, call.q, token * call.num_heads + head_index);
    return;
  }
  const bool is_key = head_index < call.num_heads + call.num_kv_heads;
  const int head = head_index - call.num_heads - (is_key ? 0 : call.num_kv_heads);
  const int64_t slot = call.slot_mapping[token];
  if (head >= call.num_kv_heads || slot < 0) {
    return;
  }
  const int64_t row_index = row_of_slot(slot, head, call.num_kv_heads, call.block_size);
  const int64_t first = token * call.kv_stride + head * call.head_dim;
  HeadRow row = read_head<T>(is_key ? call.k : call.v, first, call.head_dim, call.rotary_dim);
  if (is_key) {
    normalize_and_rotate<T>(row, call.k_norm, call);
  }
  void* cache = is_key ? call.k_cache : call.v_cache;
  if constexpr (kIsQuantized) {
    uint8_t* codes = static_cast<uint8_t*>(cache) + row_index * call.head_dim;
    const float scale = row.write_codes(codes, static_cast<CodeType>(call.code_type));
    if (lane_index() == 0) {
      (is_key ? call.k_scale : call.v_scale)[row_index] = scale;
    }
  } else {
    write_head<T>(row, cache, row_index);
  }
}

}  // namespace aether
