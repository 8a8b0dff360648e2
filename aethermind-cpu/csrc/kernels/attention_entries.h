// Attention operators. Included by each attention_<level>.cc. Instruction sets with a bfloat16 dot product replace only
// the bfloat16 kernels.
#pragma once

#include "kernels/attention.h"
#include "kernels/entries.h"
#include "kernels/paged_attention.h"

namespace aether::cpu::AETHER_ISA {

AETHER_KERNEL(attention, 3, 1, 2, attention<T>, attention_scratch<T>);
AETHER_KERNEL(mla_attention, 5, 1, 2, mla_attention<T>, mla_attention_scratch<T>);
AETHER_KERNEL(paged_attention, 8, 1, 3, paged_attention<T>, paged_attention_scratch<T>);
AETHER_KERNEL(paged_attention_quantized, 10, 1, 3, paged_attention_quantized<T>, paged_attention_quantized_scratch<T>);

#ifdef AETHER_HAS_PAIR_DOT
inline constexpr KernelEntry kAttentionEntries[] = {
    AETHER_ENTRY(attention, BFloat16),
    AETHER_ENTRY(mla_attention, BFloat16),
    AETHER_ENTRY(paged_attention, BFloat16),
    AETHER_ENTRY(paged_attention_quantized, BFloat16),
};
#else
inline constexpr KernelEntry kAttentionEntries[] = {
    AETHER_ENTRIES(attention),
    AETHER_ENTRIES(mla_attention),
    AETHER_ENTRIES(paged_attention),
    AETHER_ENTRIES(paged_attention_quantized),
};
#endif

}  // namespace aether::cpu::AETHER_ISA
