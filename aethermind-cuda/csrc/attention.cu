// attention over contiguous keys and values: q[…, Q, H, C], k and v[…, K, H_kv, C], one query at a time without tensor
// cores (see common/attend_row.cuh). blockIdx.x is the query (of all leading dims), blockIdx.y the head.

#include "common/attend_row.cuh"
#include "common/dependent_launch.cuh"

namespace aether {

template <class T>
__device__ __forceinline__ void attention(T* out, const T* q, const T* k, const T* v, int num_queries, int num_keys,
                                          int num_heads, int num_kv_heads, int head_dim, float scale, int is_causal) {
  const int query = static_cast<int>(blockIdx.x) % num_queries, head = static_cast<int>(blockIdx.y);
  const int64_t leading = static_cast<int>(blockIdx.x) / num_queries;
  const int kv_head = head / (num_heads / num_kv_heads);
  const int64_t row_begin = (static_cast<int64_t>(blockIdx.x) * num_heads + head) * head_dim;
  const int end = is_causal ? max(0, num_keys - num_queries + query + 1) : num_keys;
  const auto unit_scale = [](int64_t) { return 1.0f; };
  attend_row(
      out + row_begin, q + row_begin, head_dim, KeyRange{0, end}, scale,
      [=](int key) { return (leading * num_keys + key) * num_kv_heads + kv_head; },
      [=](int64_t row, int i) { return to_float(k[row * head_dim + i]); },
      [=](int64_t row, int i) { return to_float(v[row * head_dim + i]); }, unit_scale, unit_scale,
      [](int, float x) { return x; }, -__builtin_huge_valf());
}

}  // namespace aether

#define AETHER_ATTENTION(dtype)                                                                                    \
  extern "C" __global__ void __launch_bounds__(128) attention_##dtype(                                             \
      aether::dtype* out, const aether::dtype* q, const aether::dtype* k, const aether::dtype* v, int num_queries, \
      int num_keys, int num_heads, int num_kv_heads, int head_dim, float scale, int is_causal) {                   \
    aether::begin_kernel();                                                                                        \
    aether::attention(out, q, k, v, num_queries, num_keys, num_heads, num_kv_heads, head_dim, scale, is_causal);   \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ATTENTION)
