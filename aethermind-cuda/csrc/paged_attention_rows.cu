// paged_attention and paged_attention_quantized one query at a time (see common/attend_row.cuh): for float32,
// for head_dims that the tensor core kernels do not support, and for batch invariance. Block (token, head).

#include "common/activations.cuh"
#include "common/attend_row.cuh"
#include "common/dependent_launch.cuh"

namespace aether {

template <class T, bool kIsQuantized>
__device__ __forceinline__ void paged_attention_rows(const AttentionCall& call) {
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  if (token < call.cu_seqlens_q[0] || token >= call.cu_seqlens_q[call.num_sequences]) {
    return;
  }
  const Queries query = Queries::of_token(call, token);
  const PagedRows rows = call.rows(query.sequence, head / call.group_size());
  const int64_t row_begin = (static_cast<int64_t>(token) * call.num_heads + head) * call.head_dim;
  const KeyRange keys = KeyRange::of_position(query.first_position, call.window);
  T* out = static_cast<T*>(call.out) + row_begin;
  const T* q = static_cast<const T*>(call.q) + row_begin;
  const int head_dim = call.head_dim, position = query.first_position;
  const float slope = call.slopes == nullptr ? 0.0f : call.slopes[head] * kLog2E, sink = call.sink_exponent(head);
  const float cap = call.softcap * kLog2E;
  const auto exponent_of = [=](int key, float x) {
    const float capped = cap > 0.0f ? softcap(x, cap) : x;
    return fmaf(slope, static_cast<float>(key - position), capped);
  };
  if constexpr (kIsQuantized) {
    const CodeType type = static_cast<CodeType>(call.code_type);
    const auto* k_codes = static_cast<const uint8_t*>(call.k_cache);
    const auto* v_codes = static_cast<const uint8_t*>(call.v_cache);
    attend_row(
        out, q, head_dim, keys, call.scale, rows,
        [=](int64_t row, int i) { return code_value(k_codes[row * head_dim + i], type); },
        [=](int64_t row, int i) { return code_value(v_codes[row * head_dim + i], type); },
        [=](int64_t row) { return call.k_scale[row]; }, [=](int64_t row) { return call.v_scale[row]; }, exponent_of,
        sink);
  } else {
    const T* k = static_cast<const T*>(call.k_cache);
    const T* v = static_cast<const T*>(call.v_cache);
    const auto unit_scale = [](int64_t) { return 1.0f; };
    attend_row(
        out, q, head_dim, keys, call.scale, rows, [=](int64_t row, int i) { return to_float(k[row * head_dim + i]); },
        [=](int64_t row, int i) { return to_float(v[row * head_dim + i]); }, unit_scale, unit_scale, exponent_of, sink);
  }
}

}  // namespace aether

#define AETHER_PAGED_ATTENTION_ROWS(dtype)                                                                        \
  extern "C" __global__ void __launch_bounds__(128, 4) paged_attention_rows_##dtype(aether::AttentionCall call) { \
    aether::begin_kernel();                                                                                       \
    aether::paged_attention_rows<aether::dtype, false>(call);                                                     \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(128, 4)                                                            \
      paged_attention_rows_quantized_##dtype(aether::AttentionCall call) {                                        \
    aether::begin_kernel();                                                                                       \
    aether::paged_attention_rows<aether::dtype, true>(call);                                                      \
  }
AETHER_FOR_EACH_FLOAT(AETHER_PAGED_ATTENTION_ROWS)
