// Instruction set of a translation unit: NEON.
#pragma once

#define AETHER_ISA neon
#include "kernels/isa_tables.h"
#include "simd/neon.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 5;
inline constexpr auto kIsSupported = has_neon;

}  // namespace aether::cpu::AETHER_ISA
