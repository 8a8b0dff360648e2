// Quantised weights in plain C++, for any CPU.
#define AETHER_ISA portable
#include "kernels/isa_tables.h"
#include "simd/portable.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 0;
inline constexpr auto kIsSupported = runs_anywhere;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kPortableQuantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu
