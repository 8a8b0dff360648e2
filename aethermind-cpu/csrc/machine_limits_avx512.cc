#if defined(__x86_64__)
#define AETHER_ISA avx512
#include "machine_limits_probes.h"
#include "simd/avx512_madd.h"
#include "simd/rate_probes.h"

namespace aether::cpu {

const Probes kAvx512Probes = {
    .read = AETHER_ISA::read_rate, .float32 = AETHER_ISA::float32_rate, .int8 = AETHER_ISA::int8_rate};

}  // namespace aether::cpu

#endif
