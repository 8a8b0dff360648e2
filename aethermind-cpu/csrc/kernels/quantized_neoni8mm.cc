// Matrix operators over quantised weights, with dynamic int8 activations and a four-way dot product of bytes.
#if defined(__aarch64__)
#define AETHER_ISA neon_i8mm
#include "kernels/isa_tables.h"
#include "simd/neon_i8mm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 15;
inline constexpr auto kIsSupported = has_neon_i8mm;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kNeonI8mmQuantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
