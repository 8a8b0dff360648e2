#if defined(__x86_64__)
#define AETHER_ISA avx512_vnni
#include "machine_limits_probes.h"
#include "simd/avx512_vnni.h"
#include "simd/rate_probes.h"

namespace aether::cpu {

const Probes kAvx512VnniProbes = {.int8 = AETHER_ISA::int8_rate};

}  // namespace aether::cpu

#endif
