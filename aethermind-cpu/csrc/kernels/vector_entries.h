// Elementwise and row-wise operators that profit from vector instructions. Included by each
// vector_<isa>.cc (avx2, avx512, neon, portable).
#pragma once

#include "kernels/activations.h"
#include "kernels/alibi.h"
#include "kernels/causal_conv1d.h"
#include "kernels/elementwise.h"
#include "kernels/entries.h"
#include "kernels/kv_cache_write.h"
#include "kernels/norms.h"
#include "kernels/recurrent.h"
#include "kernels/reduce_dims.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/sample_tokens.h"
#include "kernels/shift_keys.h"
#include "kernels/softmax.h"
#include "kernels/token_logprobs.h"

namespace aether::cpu::AETHER_ISA {

AETHER_KERNEL(add, 2, 1, 0, add<T>);
AETHER_KERNEL(add_rms_norm, 3, 2, 2, add_rms_norm<T>);
AETHER_KERNEL(alibi, 2, 1, 0, alibi<T>);
AETHER_KERNEL(argmax, 1, 1, 2, argmax<T>);
AETHER_KERNEL(cast, 1, 1, 1, cast<T>);
AETHER_KERNEL(causal_conv1d, 7, 2, 1, causal_conv1d<T>);
AETHER_KERNEL(clamped_silu_mul, 2, 1, 3, clamped_silu_mul<T>);
AETHER_KERNEL(div, 2, 1, 0, div<T>);
AETHER_KERNEL(exp, 1, 1, 0, exp<T>);
AETHER_KERNEL(gated_delta_rule, 9, 2, 2, gated_delta_rule<T>, recurrent_scratch);
AETHER_KERNEL(gated_rms_norm, 3, 1, 3, gated_rms_norm<T>);
AETHER_KERNEL(gelu, 1, 1, 1, gelu<T>);
AETHER_KERNEL(kv_cache_write_quantized, 7, 4, 0, kv_cache_write_quantized<T>);
AETHER_KERNEL(layer_norm, 3, 1, 1, layer_norm<T>);
AETHER_KERNEL(log, 1, 1, 0, log<T>);
AETHER_KERNEL(max, 1, 1, 2, max<T>, reduce_scratch);
AETHER_KERNEL(mean, 1, 1, 2, mean<T>, reduce_scratch);
AETHER_KERNEL(min, 1, 1, 2, min<T>, reduce_scratch);
AETHER_KERNEL(moe_combine, 2, 1, 0, moe_combine<T>);
AETHER_KERNEL(mul, 2, 1, 0, mul<T>);
AETHER_KERNEL(prod, 1, 1, 2, prod<T>, reduce_scratch);
AETHER_KERNEL(relu, 1, 1, 0, relu<T>);
AETHER_KERNEL(rms_norm, 2, 1, 2, rms_norm<T>);
AETHER_KERNEL(rope, 2, 1, 1, rope<T>);
AETHER_KERNEL(router_logits, 3, 1, 0, router_logits<T>);
AETHER_KERNEL(router_topk, 2, 2, 7, router_topk, router_topk_scratch);
AETHER_KERNEL(sample_tokens, 6, 1, 0, sample_tokens, sample_tokens_scratch);
AETHER_KERNEL(scale, 1, 1, 1, scale<T>);
AETHER_KERNEL(shift_keys, 4, 1, 1, shift_keys<T>);
AETHER_KERNEL(shift_keys_quantized, 5, 2, 1, shift_keys_quantized, shift_keys_quantized_scratch);
AETHER_KERNEL(sigmoid_mul, 2, 1, 0, sigmoid_mul<T>);
AETHER_KERNEL(silu, 1, 1, 0, silu<T>);
AETHER_KERNEL(silu_mul, 2, 1, 0, silu_mul<T>);
AETHER_KERNEL(clamp, 1, 1, 1, clamp<T>);
AETHER_KERNEL(softcap, 1, 1, 1, softcap<T>);
AETHER_KERNEL(softmax, 1, 1, 0, softmax<T>);
AETHER_KERNEL(ssd_scan, 9, 2, 2, ssd_scan<T>, recurrent_scratch);
AETHER_KERNEL(sub, 2, 1, 0, sub<T>);
AETHER_KERNEL(sum, 1, 1, 2, sum<T>, reduce_scratch);
AETHER_KERNEL(token_logprobs, 2, 4, 1, token_logprobs);

inline constexpr KernelEntry kVectorEntries[] = {
    AETHER_ENTRIES(add),
    AETHER_ENTRIES(add_rms_norm),
    AETHER_ENTRIES(alibi),
    AETHER_ENTRIES(argmax),
    AETHER_ENTRIES(cast),
    AETHER_ENTRIES(causal_conv1d),
    AETHER_ENTRIES(clamped_silu_mul),
    AETHER_ENTRIES(div),
    AETHER_ENTRIES(exp),
    AETHER_ENTRIES(gated_delta_rule),
    AETHER_ENTRIES(gated_rms_norm),
    AETHER_ENTRIES(gelu),
    AETHER_ENTRIES(kv_cache_write_quantized),
    AETHER_ENTRIES(layer_norm),
    AETHER_ENTRIES(log),
    AETHER_ENTRIES(max),
    AETHER_ENTRIES(mean),
    AETHER_ENTRIES(min),
    AETHER_ENTRIES(moe_combine),
    AETHER_ENTRIES(mul),
    AETHER_ENTRIES(prod),
    AETHER_ENTRIES(relu),
    AETHER_ENTRIES(rms_norm),
    AETHER_ENTRIES(rope),
    AETHER_ENTRIES(router_logits),
    AETHER_ENTRY(router_topk, float),
    AETHER_ENTRY(sample_tokens, float),
    AETHER_ENTRIES(scale),
    AETHER_ENTRIES(shift_keys),
    AETHER_ENTRY(shift_keys_quantized, float),
    AETHER_ENTRIES(sigmoid_mul),
    AETHER_ENTRIES(silu),
    AETHER_ENTRIES(silu_mul),
    AETHER_ENTRIES(clamp),
    AETHER_ENTRIES(softcap),
    AETHER_ENTRIES(softmax),
    AETHER_ENTRIES(ssd_scan),
    AETHER_ENTRIES(sub),
    AETHER_ENTRIES(sum),
    AETHER_ENTRY(token_logprobs, float),
};

}  // namespace aether::cpu::AETHER_ISA
