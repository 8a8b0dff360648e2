// Vector operators in AVX2.
#if defined(__x86_64__)
#define AETHER_ISA avx2
#include "kernels/isa_tables.h"
#include "simd/avx2.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 5;
inline constexpr auto kIsSupported = has_avx2;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/entries.h"

namespace aether::cpu {

using namespace AETHER_ISA;

const KernelEntry kAvx2Kernels[] = {AETHER_VECTOR_ENTRIES};
const size_t kNumAvx2Kernels = sizeof kAvx2Kernels / sizeof kAvx2Kernels[0];

}  // namespace aether::cpu

#endif
