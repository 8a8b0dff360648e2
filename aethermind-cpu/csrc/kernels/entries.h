// The table entries of one instruction set. Included once by each kernels_<isa>.cc, after its header of csrc/simd.
#pragma once

#include "kernels/add.h"
#include "kernels/add_low_rank.h"
#include "kernels/add_rms_norm.h"
#include "kernels/alibi.h"
#include "kernels/argmax.h"
#include "kernels/attention.h"
#include "kernels/bias_tokens.h"
#include "kernels/div.h"
#include "kernels/embedding.h"
#include "kernels/exp.h"
#include "kernels/gate_up_silu.h"
#include "kernels/gather_rows.h"
#include "kernels/gelu.h"
#include "kernels/kv_cache_write.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/lm_head.h"
#include "kernels/log.h"
#include "kernels/mask_tokens.h"
#include "kernels/matmul.h"
#include "kernels/max.h"
#include "kernels/mean.h"
#include "kernels/min.h"
#include "kernels/mul.h"
#include "kernels/paged_attention.h"
#include "kernels/permute_heads.h"
#include "kernels/qkv_rope_cache_write.h"
#include "kernels/relu.h"
#include "kernels/repetition_penalty.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/rope_table.h"
#include "kernels/sample_tokens.h"
#include "kernels/scatter_rows.h"
#include "kernels/shift_keys.h"
#include "kernels/silu.h"
#include "kernels/silu_mul.h"
#include "kernels/softmax.h"
#include "kernels/sub.h"
#include "kernels/sum.h"
#include "kernels/suppress_tokens.h"
#include "kernels/token_logprobs.h"
#include "kernels/transpose.h"

namespace aether::cpu::AETHER_ISA {

#define AETHER_TEXT_OF(x) #x
#define AETHER_TEXT(x) AETHER_TEXT_OF(x)
#define AETHER_VARIANT AETHER_TEXT(AETHER_ISA)

template <class T>
inline constexpr am_dtype kTypeOf = AM_FLOAT32;
template <>
inline constexpr am_dtype kTypeOf<BFloat16> = AM_BFLOAT16;
template <>
inline constexpr am_dtype kTypeOf<Float16> = AM_FLOAT16;

template <class T>
inline constexpr const PackEntry* kPanels = &kPanelsFloat32;
template <>
inline constexpr const PackEntry* kPanels<BFloat16> = &kPanelsBFloat16;
template <>
inline constexpr const PackEntry* kPanels<Float16> = &kPanelsFloat16;

// The am_kernel of an operator for F = T (or, for an operator without F, for float32).
#define AETHER_KERNEL(op, inputs, outputs, attrs, ...) \
  template <class T>                                   \
  inline constexpr am_kernel k_##op = make_kernel(#op "/" AETHER_VARIANT, inputs, outputs, attrs, __VA_ARGS__)

AETHER_KERNEL(add, 2, 1, 0, add<T>);
AETHER_KERNEL(add_low_rank, 6, 1, 0, add_low_rank<T>, add_low_rank_scratch<T>);
AETHER_KERNEL(add_rms_norm, 3, 2, 1, add_rms_norm<T>);
AETHER_KERNEL(alibi, 2, 1, 0, alibi<T>);
AETHER_KERNEL(argmax, 1, 1, 0, argmax<T>);
AETHER_KERNEL(attention, 3, 1, 2, attention<T>, attention_scratch<T>);
AETHER_KERNEL(bias_tokens, 4, 1, 0, bias_tokens);
AETHER_KERNEL(div, 2, 1, 0, div<T>);
AETHER_KERNEL(embedding, 2, 1, 0, embedding<T>);
AETHER_KERNEL(exp, 1, 1, 0, exp<T>);
AETHER_KERNEL(gate_up_silu, 3, 1, 0, gate_up_silu<T>, gate_up_silu_scratch<T>);
AETHER_KERNEL(gather_rows, 2, 1, 0, gather_rows<T>);
AETHER_KERNEL(gelu, 1, 1, 1, gelu<T>);
AETHER_KERNEL(kv_cache_write, 5, 2, 0, kv_cache_write<T>);
AETHER_KERNEL(kv_cache_write_quantized, 7, 4, 0, kv_cache_write_quantized<T>);
AETHER_KERNEL(layer_norm, 3, 1, 1, layer_norm<T>);
AETHER_KERNEL(linear, 3, 1, 0, linear<T>, linear_scratch<T>);
AETHER_KERNEL(lm_head, 2, 1, 0, lm_head<T>, linear_scratch<T>);
AETHER_KERNEL(log, 1, 1, 0, log<T>);
AETHER_KERNEL(mask_tokens, 2, 1, 0, mask_tokens);
AETHER_KERNEL(matmul, 2, 1, 0, matmul<T>, matmul_scratch<T>);
AETHER_KERNEL(max, 1, 1, 0, max<T>);
AETHER_KERNEL(mean, 1, 1, 0, mean<T>);
AETHER_KERNEL(min, 1, 1, 0, min<T>);
AETHER_KERNEL(mul, 2, 1, 0, mul<T>);
AETHER_KERNEL(packed_embedding, 2, 1, 0, packed_embedding<T>);
AETHER_KERNEL(paged_attention, 6, 1, 2, paged_attention<T>, paged_attention_scratch<T>);
AETHER_KERNEL(paged_attention_quantized, 8, 1, 2, paged_attention_quantized<T>, paged_attention_quantized_scratch<T>);
AETHER_KERNEL(permute_heads, 1, 1, 0, permute_heads<T>);
AETHER_KERNEL(position_embedding, 2, 1, 0, position_embedding<T>);
AETHER_KERNEL(qkv_rope_cache_write, 13, 3, 3, qkv_rope_cache_write<T>, qkv_rope_cache_write_scratch<T>);
AETHER_KERNEL(qkv_rope_cache_write_quantized, 15, 5, 3, qkv_rope_cache_write_quantized<T>,
              qkv_rope_cache_write_scratch<T>);
AETHER_KERNEL(relu, 1, 1, 0, relu<T>);
AETHER_KERNEL(repetition_penalty, 4, 1, 0, repetition_penalty);
AETHER_KERNEL(rms_norm, 2, 1, 1, rms_norm<T>);
AETHER_KERNEL(rope, 2, 1, 1, rope<T>);
AETHER_KERNEL(rope_table, 2, 1, 1, rope_table);
AETHER_KERNEL(sample_tokens, 6, 1, 0, sample_tokens, sample_tokens_scratch);
AETHER_KERNEL(scatter_rows, 3, 1, 0, scatter_rows<T>);
AETHER_KERNEL(shift_keys, 4, 1, 1, shift_keys<T>);
AETHER_KERNEL(shift_keys_quantized, 5, 2, 1, shift_keys_quantized, shift_keys_quantized_scratch);
AETHER_KERNEL(silu, 1, 1, 0, silu<T>);
AETHER_KERNEL(silu_mul, 2, 1, 0, silu_mul<T>);
AETHER_KERNEL(softmax, 1, 1, 0, softmax<T>);
AETHER_KERNEL(sub, 2, 1, 0, sub<T>);
AETHER_KERNEL(sum, 1, 1, 0, sum<T>);
AETHER_KERNEL(suppress_tokens, 3, 1, 0, suppress_tokens);
AETHER_KERNEL(token_logprobs, 2, 4, 1, token_logprobs);
AETHER_KERNEL(transpose, 1, 1, 0, transpose<T>);

template <class T>
constexpr KernelEntry entry(const char* name, const am_kernel& kernel) {
  return {name, AETHER_VARIANT, kTypeOf<T>, kPriority, kIsSupported, &kernel, {}, 0};
}

// An entry whose weights, `count` inputs from `first` on, are packed.
template <class T>
constexpr KernelEntry packed_entry(const char* name, const am_kernel& kernel, int first, int count) {
  KernelEntry result = entry<T>(name, kernel);
  for (int i = 0; i < count; ++i) {
    result.packs[i].input = first + i;
    result.packs[i].pack = kPanels<T>;
  }
  result.num_packs = count;
  return result;
}

#define AETHER_ENTRY(op, T) entry<T>(#op, k_##op<T>)
#define AETHER_ENTRIES(op) AETHER_ENTRY(op, float), AETHER_ENTRY(op, BFloat16), AETHER_ENTRY(op, Float16)
#define AETHER_PACKED_ENTRY(op, T, first, count) packed_entry<T>(#op, k_##op<T>, first, count)
#define AETHER_PACKED_ENTRIES(op, first, count)                                                  \
  AETHER_PACKED_ENTRY(op, float, first, count), AETHER_PACKED_ENTRY(op, BFloat16, first, count), \
      AETHER_PACKED_ENTRY(op, Float16, first, count)

// What is worth writing in vector instructions; operators that only copy stay portable.
#define AETHER_VECTOR_ENTRIES                                                                                         \
  AETHER_ENTRIES(add), AETHER_ENTRIES(add_low_rank), AETHER_ENTRIES(add_rms_norm), AETHER_ENTRIES(alibi),             \
      AETHER_ENTRIES(argmax), AETHER_ENTRIES(attention), AETHER_ENTRIES(div), AETHER_ENTRIES(exp),                    \
      AETHER_PACKED_ENTRIES(gate_up_silu, 1, 2), AETHER_ENTRIES(gelu), AETHER_ENTRIES(kv_cache_write_quantized),      \
      AETHER_ENTRIES(layer_norm), AETHER_PACKED_ENTRIES(linear, 1, 1), AETHER_PACKED_ENTRIES(lm_head, 1, 1),          \
      AETHER_ENTRIES(log), AETHER_ENTRIES(matmul), AETHER_ENTRIES(max), AETHER_ENTRIES(mean), AETHER_ENTRIES(min),    \
      AETHER_ENTRIES(mul), AETHER_ENTRIES(paged_attention), AETHER_ENTRIES(paged_attention_quantized),                \
      AETHER_PACKED_ENTRIES(qkv_rope_cache_write, 1, 3), AETHER_PACKED_ENTRIES(qkv_rope_cache_write_quantized, 1, 3), \
      AETHER_ENTRIES(relu), AETHER_ENTRIES(rms_norm), AETHER_ENTRIES(rope), AETHER_ENTRY(sample_tokens, float),       \
      AETHER_ENTRIES(shift_keys), AETHER_ENTRY(shift_keys_quantized, float), AETHER_ENTRIES(silu),                    \
      AETHER_ENTRIES(silu_mul), AETHER_ENTRIES(softmax), AETHER_ENTRIES(sub), AETHER_ENTRIES(sum),                    \
      AETHER_ENTRY(token_logprobs, float)

}  // namespace aether::cpu::AETHER_ISA
