#if defined(__aarch64__)
#define AETHER_ISA neon_dot
#include "machine_limits_probes.h"
#include "simd/neon_dot.h"
#include "simd/rate_probes.h"

namespace aether::cpu {

const Probes kNeonDotProbes = {.int8 = AETHER_ISA::int8_rate};

}  // namespace aether::cpu

#endif
