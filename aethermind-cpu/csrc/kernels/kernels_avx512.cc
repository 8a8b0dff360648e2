// Operators worth writing in AVX-512; those that only copy stay portable.
#if defined(__x86_64__)
#define AETHER_ISA avx512
#include "kernels/isa_tables.h"
#include "simd/avx512.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 10;
inline constexpr auto kIsSupported = has_avx512;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/entries.h"

namespace aether::cpu {

using namespace AETHER_ISA;

const KernelEntry kAvx512Kernels[] = {
    AETHER_ENTRIES(add),
    AETHER_ENTRIES(add_rms_norm),
    AETHER_ENTRIES(alibi),
    AETHER_ENTRIES(argmax),
    AETHER_ENTRIES(attention),
    AETHER_ENTRIES(div),
    AETHER_ENTRIES(exp),
    AETHER_PACKED_ENTRIES(gate_up_silu, 1, 2),
    AETHER_ENTRIES(gelu),
    AETHER_ENTRIES(layer_norm),
    AETHER_PACKED_ENTRIES(linear, 1, 1),
    AETHER_PACKED_ENTRIES(lm_head, 1, 1),
    AETHER_ENTRIES(log),
    AETHER_ENTRIES(matmul),
    AETHER_ENTRIES(max),
    AETHER_ENTRIES(mean),
    AETHER_ENTRIES(min),
    AETHER_ENTRIES(mul),
    AETHER_ENTRIES(paged_attention),
    AETHER_PACKED_ENTRIES(qkv_rope_cache_write, 1, 3),
    AETHER_ENTRIES(relu),
    AETHER_ENTRIES(rms_norm),
    AETHER_ENTRIES(rope),
    AETHER_ENTRY(sample_tokens, float),
    AETHER_ENTRIES(silu),
    AETHER_ENTRIES(silu_mul),
    AETHER_ENTRIES(softmax),
    AETHER_ENTRIES(sub),
    AETHER_ENTRIES(sum),
    AETHER_ENTRY(token_logprobs, float),
};
const size_t kNumAvx512Kernels = sizeof kAvx512Kernels / sizeof kAvx512Kernels[0];

}  // namespace aether::cpu

#endif
