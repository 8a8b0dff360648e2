// The matrix operators with the bfloat16 dot product.
#if defined(__x86_64__)
#define AETHER_ISA avx512_bf16
#include "kernels/isa_tables.h"
#include "simd/avx512_bf16.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 20;
inline constexpr auto kIsSupported = has_avx512_bf16;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/entries.h"

namespace aether::cpu {

using namespace AETHER_ISA;

const KernelEntry kAvx512Bf16Kernels[] = {
    AETHER_ENTRY(attention, BFloat16),
    AETHER_PACKED_ENTRY(gate_up_silu, BFloat16, 1, 2),
    AETHER_PACKED_ENTRY(linear, BFloat16, 1, 1),
    AETHER_PACKED_ENTRY(lm_head, BFloat16, 1, 1),
    AETHER_ENTRY(matmul, BFloat16),
    AETHER_ENTRY(paged_attention, BFloat16),
    AETHER_ENTRY(paged_attention_quantized, BFloat16),
    AETHER_PACKED_ENTRY(qkv_rope_cache_write, BFloat16, 1, 3),
    AETHER_PACKED_ENTRY(qkv_rope_cache_write_quantized, BFloat16, 1, 3),
};
const size_t kNumAvx512Bf16Kernels = sizeof kAvx512Bf16Kernels / sizeof kAvx512Bf16Kernels[0];

}  // namespace aether::cpu

#endif
