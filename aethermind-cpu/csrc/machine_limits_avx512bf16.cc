#if defined(__x86_64__)
#define AETHER_ISA avx512_bf16
#include "machine_limits_probes.h"
#include "simd/avx512_bf16.h"
#include "simd/rate_probes.h"

namespace aether::cpu {

const Probes kAvx512Bf16Probes = {.bfloat16 = AETHER_ISA::bfloat16_rate};

}  // namespace aether::cpu

#endif
