// What the instruction sets' translation units give to the registry, and what it tells them about the CPU.
#pragma once

#include <cstddef>

#include "kernels/registry.h"

namespace aether::cpu {

extern const KernelEntry kPortableKernels[];
extern const size_t kNumPortableKernels;
extern const KernelEntry kAvx2Kernels[];
extern const size_t kNumAvx2Kernels;
extern const KernelEntry kAvx512Kernels[];
extern const size_t kNumAvx512Kernels;
extern const KernelEntry kAvx512Bf16Kernels[];
extern const size_t kNumAvx512Bf16Kernels;
extern const KernelEntry kNeonKernels[];
extern const size_t kNumNeonKernels;

extern const std::span<const KernelEntry> kPortableQuantized;
extern const std::span<const KernelEntry> kQuantizedRows;
extern const std::span<const KernelEntry> kAvx2Quantized;
extern const std::span<const KernelEntry> kAvx2VnniQuantized;
extern const std::span<const KernelEntry> kAvx512Quantized;
extern const std::span<const KernelEntry> kAvx512VnniQuantized;
extern const std::span<const KernelEntry> kNeonQuantized;
extern const std::span<const KernelEntry> kNeonDotQuantized;
extern const std::span<const KernelEntry> kNeonI8mmQuantized;

bool runs_anywhere();
bool has_avx2();
bool has_avx2_vnni();
bool has_avx512();
bool has_avx512_vnni();
bool has_avx512_bf16();
bool has_neon();
bool has_neon_dot();
bool has_neon_i8mm();

}  // namespace aether::cpu
