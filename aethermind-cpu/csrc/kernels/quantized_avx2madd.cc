// Matrix operators over quantised weights, with dynamic int8 activations and products of bytes in 16-bit sums.
#if defined(__x86_64__)
#define AETHER_ISA avx2
#include "kernels/isa_tables.h"
#include "simd/avx2_madd.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 5;
inline constexpr auto kIsSupported = has_avx2;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx2Quantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
