// Compiles the including translation unit's kernels for AVX2: its namespace, vector types and dispatch priority.
#pragma once

#define AETHER_ISA avx2
#include "kernels/isa_tables.h"
#include "simd/avx2.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 5;
inline constexpr auto kIsSupported = has_avx2;

}  // namespace aether::cpu::AETHER_ISA
