// Vector operators in AVX-512.
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

const KernelEntry kAvx512Kernels[] = {AETHER_VECTOR_ENTRIES};
const size_t kNumAvx512Kernels = sizeof kAvx512Kernels / sizeof kAvx512Kernels[0];

}  // namespace aether::cpu

#endif
