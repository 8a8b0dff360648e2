#include "kernels/registry.h"

#include <vector>

#include "cpu_features.h"
#include "kernels/isa_tables.h"

namespace aether::cpu {

bool runs_anywhere() { return true; }

bool has_avx2() { return cpu_features().has_avx2(); }

bool has_avx512() { return cpu_features().has_avx512(); }

bool has_avx512_vnni() { return cpu_features().has_avx512vnni(); }

bool has_avx512_bf16() { return cpu_features().has_avx512bf16(); }

bool has_neon() { return cpu_features().has_neon(); }

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
    std::vector<KernelEntry> entries(kPortableQuantized.begin(), kPortableQuantized.end());
#if defined(__x86_64__)
    for (const auto& more : {kAvx2Quantized, kAvx512Quantized, kAvx512VnniQuantized})
      entries.insert(entries.end(), more.begin(), more.end());
#elif defined(__aarch64__)
    entries.insert(entries.end(), kNeonQuantized.begin(), kNeonQuantized.end());
#endif
    return entries;
  }();
  return table;
}

}  // namespace aether::cpu
