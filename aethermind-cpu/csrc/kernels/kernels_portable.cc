// Every operator in plain C++, for any CPU.
#define AETHER_ISA portable
#include "kernels/isa_tables.h"
#include "simd/portable.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 0;
inline constexpr auto kIsSupported = runs_anywhere;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/entries.h"

namespace aether::cpu {

using namespace AETHER_ISA;

const KernelEntry kPortableKernels[] = {
    AETHER_ENTRIES(add),
    AETHER_ENTRIES(add_low_rank),
    AETHER_ENTRIES(add_rms_norm),
    AETHER_ENTRIES(alibi),
    AETHER_ENTRIES(argmax),
    AETHER_ENTRIES(attention),
    AETHER_ENTRY(bias_tokens, float),
    AETHER_ENTRIES(div),
    AETHER_ENTRIES(embedding),
    packed_entry<float>("embedding", k_packed_embedding<float>, 1, 1),
    packed_entry<BFloat16>("embedding", k_packed_embedding<BFloat16>, 1, 1),
    packed_entry<Float16>("embedding", k_packed_embedding<Float16>, 1, 1),
    AETHER_ENTRIES(exp),
    AETHER_PACKED_ENTRIES(gate_up_silu, 1, 2),
    AETHER_ENTRIES(gather_rows),
    AETHER_ENTRIES(gelu),
    AETHER_ENTRIES(kv_cache_write),
    AETHER_ENTRIES(kv_cache_write_quantized),
    AETHER_ENTRIES(layer_norm),
    AETHER_PACKED_ENTRIES(linear, 1, 1),
    AETHER_PACKED_ENTRIES(lm_head, 1, 1),
    AETHER_ENTRIES(log),
    AETHER_ENTRY(mask_tokens, float),
    AETHER_ENTRIES(matmul),
    AETHER_ENTRIES(max),
    AETHER_ENTRIES(mean),
    AETHER_ENTRIES(min),
    AETHER_ENTRIES(mul),
    AETHER_ENTRIES(paged_attention),
    AETHER_ENTRIES(paged_attention_quantized),
    AETHER_ENTRIES(permute_heads),
    AETHER_ENTRIES(position_embedding),
    AETHER_PACKED_ENTRIES(qkv_rope_cache_write, 1, 3),
    AETHER_PACKED_ENTRIES(qkv_rope_cache_write_quantized, 1, 3),
    AETHER_ENTRIES(relu),
    AETHER_ENTRY(repetition_penalty, float),
    AETHER_ENTRIES(rms_norm),
    AETHER_ENTRIES(rope),
    AETHER_ENTRY(rope_table, float),
    AETHER_ENTRY(sample_tokens, float),
    AETHER_ENTRIES(scatter_rows),
    AETHER_ENTRIES(shift_keys),
    AETHER_ENTRY(shift_keys_quantized, float),
    AETHER_ENTRIES(silu),
    AETHER_ENTRIES(silu_mul),
    AETHER_ENTRIES(softmax),
    AETHER_ENTRIES(sub),
    AETHER_ENTRIES(sum),
    AETHER_ENTRY(suppress_tokens, float),
    AETHER_ENTRY(token_logprobs, float),
    AETHER_ENTRIES(transpose),
};
const size_t kNumPortableKernels = sizeof kPortableKernels / sizeof kPortableKernels[0];

}  // namespace aether::cpu
