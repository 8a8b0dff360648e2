// Operators worth writing in NEON; those that only copy stay portable.
#if defined(__aarch64__)
#define AETHER_ISA neon
#include "kernels/isa_tables.h"
#include "simd/neon.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 5;
inline constexpr auto kIsSupported = has_neon;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/entries.h"

namespace aether::cpu {

using namespace AETHER_ISA;

const KernelEntry kNeonKernels[] = {
    AETHER_ENTRIES(add),
    AETHER_ENTRIES(add_rms_norm),
    AETHER_PACKED_ENTRIES(gate_up_silu, 1, 2),
    AETHER_PACKED_ENTRIES(linear, 1, 1),
    AETHER_PACKED_ENTRIES(lm_head, 1, 1),
    AETHER_ENTRIES(mul),
    AETHER_ENTRIES(paged_attention),
    AETHER_PACKED_ENTRIES(qkv_rope_cache_write, 1, 3),
    AETHER_ENTRIES(rms_norm),
    AETHER_ENTRIES(rope),
    AETHER_ENTRY(sample_tokens, float),
    AETHER_ENTRIES(silu),
    AETHER_ENTRIES(silu_mul),
    AETHER_ENTRY(token_logprobs, float),
};
const size_t kNumNeonKernels = sizeof kNeonKernels / sizeof kNeonKernels[0];

}  // namespace aether::cpu

#endif
