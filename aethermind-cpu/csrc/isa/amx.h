// Instruction set of a translation unit: AVX-512 with the bfloat16 dot product, and the tile unit (Intel AMX).
#pragma once

#define AETHER_ISA amx
#include "kernels/isa_tables.h"
#include "simd/amx.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 30;
inline constexpr auto kIsSupported = has_amx;

}  // namespace aether::cpu::AETHER_ISA
