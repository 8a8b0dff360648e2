// Instruction set of a translation unit: AVX-512 with the bfloat16 dot product.
#pragma once

#define AETHER_ISA avx512_bf16
#include "kernels/isa_tables.h"
#include "simd/avx512_bf16.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 20;
inline constexpr auto kIsSupported = has_avx512_bf16;

}  // namespace aether::cpu::AETHER_ISA
