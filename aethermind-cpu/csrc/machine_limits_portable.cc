#define AETHER_ISA portable
#include "machine_limits_probes.h"
#include "simd/portable.h"
#include "simd/rate_probes.h"

namespace aether::cpu {

const Probes kPortableProbes = {.read = AETHER_ISA::read_rate, .float32 = AETHER_ISA::float32_rate};

}  // namespace aether::cpu
