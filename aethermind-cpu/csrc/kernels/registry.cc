#include "kernels/registry.h"

#include <vector>

#include "cpu_features.h"
#include "kernels/isa_tables.h"

namespace aether::cpu {

bool runs_anywhere() { return true; }

bool has_avx2() { return cpu_features().has_avx2(); }

bool has_avx2_vnni() { return cpu_features().has_avx2vnni(); }

bool has_avx512() { return cpu_features().has_avx512(); }

bool has_avx512_vnni() { return cpu_features().has_avx512vnni(); }

bool has_avx512_bf16() { return cpu_features().has_avx512bf16(); }

bool has_neon() { return cpu_features().has_neon(); }

bool has_neon_dot() { return cpu_features().has_neondot(); }

bool has_neon_i8mm() { return cpu_features().has_neoni8mm(); }

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = [] {
    std::vector<KernelEntry> entries(kPortableKernels, kPortableKernels + kNumPortableKernels);
#if defined(__x86_64__)
    entries.insert(entries.end(), kAvx2Kernels, kAvx2Kernels + kNumAvx2Kernels);
    entries.insert(entries.end(), kAvx512Kernels, kAvx512Kernels + kNumAvx512Kernels);
    entries.insert(entries.end(), kAvx512Bf16Kernels, kAvx512Bf16Kernels + kNumAvx512Bf16Kernels);
#elif defined(__aarch64__)
    entries.insert(entries.end(), kNeonKernels, kNeonKernels + kNumNeonKernels);
#endif
    return entries;
  }();
  return table;
}

std::span<const KernelEntry> quantized_kernel_table() {
  static const std::vector<KernelEntry> table = [] {
    std::vector<KernelEntry> entries;
    const std::span<const KernelEntry> levels[] = {
        kPortableQuantized, kQuantizedRows,
#if defined(__x86_64__)
        kAvx2Quantized,     kAvx2VnniQuantized, kAvx512Quantized, kAvx512VnniQuantized,
#elif defined(__aarch64__)
        kNeonQuantized,     kNeonDotQuantized, kNeonI8mmQuantized,
#endif
    };
    for (const auto& level : levels) entries.insert(entries.end(), level.begin(), level.end());
    return entries;
  }();
  return table;
}

}  // namespace aether::cpu
