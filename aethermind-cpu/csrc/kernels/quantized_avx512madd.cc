// Matrix operators over quantised weights, with dynamic int8 activations and products of bytes in 16-bit sums.
#if defined(__x86_64__)
#define AETHER_ISA avx512
#include "kernels/isa_tables.h"
#include "simd/avx512_madd.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 10;
inline constexpr auto kIsSupported = has_avx512;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512Quantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
