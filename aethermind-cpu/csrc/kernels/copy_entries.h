// Operators that only copy elements, or compute few: all instruction set levels use their portable kernels.
#pragma once

#include "kernels/entries.h"
#include "kernels/indexed_rows.h"
#include "kernels/kv_cache_write.h"
#include "kernels/logits_processors.h"
#include "kernels/reshaping.h"
#include "kernels/rope.h"
#include "kernels/token_vectors.h"

namespace aether::cpu::AETHER_ISA {

AETHER_KERNEL(bias_tokens, 4, 1, 0, bias_tokens);
AETHER_KERNEL(concat, 2, 1, 0, concat<T>);
AETHER_KERNEL(concat_last, 2, 1, 0, concat_last<T>);
AETHER_KERNEL(embedding, 2, 1, 0, embedding<T>);
AETHER_KERNEL(packed_embedding, 2, 1, 0, packed_embedding<T>);
AETHER_KERNEL(gather_rows, 2, 1, 0, gather_rows<T>);
AETHER_KERNEL(kv_cache_write, 5, 2, 0, kv_cache_write<T>);
AETHER_KERNEL(latent_cache_write, 3, 1, 0, latent_cache_write<T>);
AETHER_KERNEL(mask_tokens, 2, 1, 0, mask_tokens);
AETHER_KERNEL(expand, 1, 1, 1, expand<T>);
AETHER_KERNEL(permute, 1, 1, 1, permute<T>);
AETHER_KERNEL(permute_heads, 1, 1, 0, permute_heads<T>);
AETHER_KERNEL(position_embedding, 2, 1, 0, position_embedding<T>);
AETHER_KERNEL(repetition_penalty, 4, 1, 0, repetition_penalty);
AETHER_KERNEL(rope_table, 2, 1, 1, rope_table);
AETHER_KERNEL(scatter_rows, 3, 1, 0, scatter_rows<T>);
AETHER_KERNEL(select, 1, 1, 1, select<T>);
AETHER_KERNEL(slice_last, 1, 1, 2, slice_last<T>);
AETHER_KERNEL(suppress_tokens, 3, 1, 0, suppress_tokens);
AETHER_KERNEL(take_experts, 2, 1, 2, take_experts<T>);
AETHER_KERNEL(transpose, 1, 1, 0, transpose<T>);

inline constexpr KernelEntry kCopyEntries[] = {
    AETHER_ENTRY(bias_tokens, float),
    AETHER_ENTRIES(concat),
    AETHER_ENTRIES(concat_last),
    AETHER_ENTRIES(embedding),
    packed_entry<float>("embedding", k_packed_embedding<float>, 1, 1),
    packed_entry<BFloat16>("embedding", k_packed_embedding<BFloat16>, 1, 1),
    packed_entry<Float16>("embedding", k_packed_embedding<Float16>, 1, 1),
    AETHER_ENTRIES(gather_rows),
    AETHER_ENTRIES(kv_cache_write),
    AETHER_ENTRIES(latent_cache_write),
    AETHER_ENTRY(mask_tokens, float),
    AETHER_ENTRIES(expand),
    AETHER_ENTRIES(permute),
    AETHER_ENTRIES(permute_heads),
    AETHER_ENTRIES(position_embedding),
    AETHER_ENTRY(repetition_penalty, float),
    AETHER_ENTRY(rope_table, float),
    AETHER_ENTRIES(scatter_rows),
    AETHER_ENTRIES(select),
    AETHER_ENTRIES(slice_last),
    AETHER_ENTRY(suppress_tokens, float),
    AETHER_ENTRIES(take_experts),
    AETHER_ENTRIES(transpose),
};

}  // namespace aether::cpu::AETHER_ISA
