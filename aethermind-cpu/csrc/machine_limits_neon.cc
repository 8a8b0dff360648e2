#if defined(__aarch64__)
#define AETHER_ISA neon
#include "machine_limits_probes.h"
#include "simd/neon.h"
#include "simd/rate_probes.h"

namespace aether::cpu {

const Probes kNeonProbes = {.read = AETHER_ISA::read_rate, .float32 = AETHER_ISA::float32_rate};

}  // namespace aether::cpu

#endif
