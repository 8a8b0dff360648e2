// Matrix operators over quantised weights, dequantised in registers.
#if defined(__aarch64__)
#define AETHER_ISA neon
#include "kernels/isa_tables.h"
#include "simd/neon.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 5;
inline constexpr auto kIsSupported = has_neon;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kNeonQuantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
