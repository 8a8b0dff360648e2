// Matrix operators over quantised weights, with dynamic int8 activations and a four-way dot product of bytes.
#if defined(__x86_64__)
#define AETHER_ISA avx2_vnni
#include "kernels/isa_tables.h"
#include "simd/avx2_vnni.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 7;
inline constexpr auto kIsSupported = has_avx2_vnni;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_entries.h"

namespace aether::cpu {

const std::span<const KernelEntry> kAvx2VnniQuantized = AETHER_ISA::kQuantizedEntries;

}  // namespace aether::cpu

#endif
