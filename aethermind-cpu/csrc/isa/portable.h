// Instruction set of a translation unit: plain C++, for any CPU.
#pragma once

#define AETHER_ISA portable
#include "kernels/isa_tables.h"
#include "simd/portable.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 0;
inline constexpr auto kIsSupported = runs_anywhere;

}  // namespace aether::cpu::AETHER_ISA
