// Matrix operators over dense weights, and low-rank adapters. Included by each matrix_<level>.cc. Instruction sets with
// a bfloat16 dot product replace only the bfloat16 kernels; the tile unit replaces those of packed weights.
#pragma once

#include "kernels/add_low_rank.h"
#include "kernels/entries.h"
#include "kernels/linear.h"
#include "kernels/matmul.h"
#include "kernels/mixture.h"
#include "kernels/qkv_rope_cache_write.h"

namespace aether::cpu::AETHER_ISA {

AETHER_KERNEL(add_low_rank, 6, 1, 0, add_low_rank<T>, add_low_rank_scratch<T>);
AETHER_KERNEL(gate_up_gelu, 3, 1, 1, gate_up_gelu<T>, gate_up_scratch<T>);
AETHER_KERNEL(gate_up_silu, 3, 1, 0, gate_up_silu<T>, gate_up_scratch<T>);
AETHER_KERNEL(linear, 3, 1, 0, linear<T>, linear_scratch<T>);
AETHER_KERNEL(linear_per_head, 2, 1, 1, linear_per_head<T>, linear_per_head_scratch<DenseWeight<T>>);
AETHER_KERNEL(lm_head, 3, 1, 0, lm_head<T>, linear_scratch<T>);
AETHER_KERNEL(matmul, 2, 1, 0, matmul<T>, matmul_scratch<T>);
AETHER_KERNEL(moe_gate_up_silu, 6, 1, 4, moe_gate_up_silu<T>, moe_scratch<DenseWeight<T>, 2>);
AETHER_KERNEL(moe_linear, 4, 1, 1, moe_linear<T>, moe_scratch<DenseWeight<T>, 1>);
AETHER_KERNEL(qkv_rope_cache_write, 13, 3, 4, qkv_rope_cache_write<T>, qkv_rope_cache_write_scratch<T>);
AETHER_KERNEL(qkv_rope_cache_write_quantized, 15, 5, 4, qkv_rope_cache_write_quantized<T>,
              qkv_rope_cache_write_scratch<T>);

#ifdef AETHER_HAS_PAIR_DOT
inline constexpr KernelEntry kMatrixEntries[] = {
    AETHER_PACKED_ENTRY(gate_up_gelu, BFloat16, 1, 2),
    AETHER_PACKED_ENTRY(gate_up_silu, BFloat16, 1, 2),
    AETHER_PACKED_ENTRY(linear, BFloat16, 1, 1),
    AETHER_PACKED_ENTRY(linear_per_head, BFloat16, 1, 1),
    AETHER_PACKED_ENTRY(lm_head, BFloat16, 1, 1),
#ifndef AETHER_HAS_TILES
    AETHER_ENTRY(matmul, BFloat16),
#endif
    AETHER_PACKED_ENTRY(moe_gate_up_silu, BFloat16, 2, 2),
    AETHER_PACKED_ENTRY(moe_linear, BFloat16, 2, 1),
    AETHER_PACKED_ENTRY(qkv_rope_cache_write, BFloat16, 1, 3),
    AETHER_PACKED_ENTRY(qkv_rope_cache_write_quantized, BFloat16, 1, 3),
};
#else
inline constexpr KernelEntry kMatrixEntries[] = {
    AETHER_ENTRIES(add_low_rank),
    AETHER_PACKED_ENTRIES(gate_up_gelu, 1, 2),
    AETHER_PACKED_ENTRIES(gate_up_silu, 1, 2),
    AETHER_PACKED_ENTRIES(linear, 1, 1),
    AETHER_PACKED_ENTRIES(linear_per_head, 1, 1),
    AETHER_PACKED_ENTRIES(lm_head, 1, 1),
    AETHER_ENTRIES(matmul),
    AETHER_PACKED_ENTRIES(moe_gate_up_silu, 2, 2),
    AETHER_PACKED_ENTRIES(moe_linear, 2, 1),
    AETHER_PACKED_ENTRIES(qkv_rope_cache_write, 1, 3),
    AETHER_PACKED_ENTRIES(qkv_rope_cache_write_quantized, 1, 3),
};
#endif

}  // namespace aether::cpu::AETHER_ISA
