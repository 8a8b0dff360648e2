// Matrix operators over quantised weights, with dynamic int8 activations and a four-way dot product of bytes.
#if defined(__aarch64__)
#define AETHER_ISA neon_dot
#include "kernels/isa_tables.h"
#include "simd/neon_dot.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 10;
inline constexpr auto kIsSupported = has_neon_dot;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kNeonDotQuantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
