// Matrix operators over quantised weights, with dynamic int8 activations and a four-way dot product of bytes.
#if defined(__x86_64__)
#define AETHER_ISA avx512_vnni
#include "kernels/isa_tables.h"
#include "simd/avx512_vnni.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 15;
inline constexpr auto kIsSupported = has_avx512_vnni;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx512VnniQuantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
