// Vector operators in NEON.
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

const KernelEntry kNeonKernels[] = {AETHER_VECTOR_ENTRIES};
const size_t kNumNeonKernels = sizeof kNeonKernels / sizeof kNeonKernels[0];

}  // namespace aether::cpu

#endif
