// Instruction set of a translation unit: AVX-512.
#pragma once

#define AETHER_ISA avx512
#include "kernels/isa_tables.h"
#include "simd/avx512.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 10;
inline constexpr auto kIsSupported = has_avx512;

}  // namespace aether::cpu::AETHER_ISA
