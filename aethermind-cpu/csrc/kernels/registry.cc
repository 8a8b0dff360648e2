#include "kernels/registry.h"

#include <vector>

#include "built_levels.h"
#include "cpu_features.h"
#include "kernels/isa_tables.h"

namespace aether::cpu {

bool runs_anywhere() { return true; }

bool has_avx2() { return cpu_features().has_avx2(); }

bool has_avx2_vnni() { return cpu_features().has_avx2vnni(); }

bool has_avx512() { return cpu_features().has_avx512(); }

bool has_avx512_vnni() { return cpu_features().has_avx512vnni(); }

bool has_avx512_bf16() { return cpu_features().has_avx512bf16(); }

bool has_amx() { return cpu_features().has_amx(); }

bool has_neon() { return cpu_features().has_neon(); }

bool has_neon_dot() { return cpu_features().has_neondot(); }

bool has_neon_i8mm() { return cpu_features().has_neoni8mm(); }

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = [] {
    std::vector<KernelEntry> entries;
    for (const auto& unit : {
             kPortableAttention,
             kPortableMatrix,
             kPortableVector,
             kPortableCopies,
#if AETHER_BUILT_AVX2
             kAvx2Attention,
             kAvx2Matrix,
             kAvx2Vector,
#endif
#if AETHER_BUILT_AVX512
             kAvx512Attention,
             kAvx512Matrix,
             kAvx512Vector,
#endif
#if AETHER_BUILT_AVX512BF16
             kAvx512Bf16Attention,
             kAvx512Bf16Matrix,
#endif
#if AETHER_BUILT_AMX
             kAmxMatrix,
#endif
#if AETHER_BUILT_NEON
             kNeonAttention,
             kNeonMatrix,
             kNeonVector,
#endif
         }) {
      entries.insert(entries.end(), unit.begin(), unit.end());
    }
    return entries;
  }();
  return table;
}

std::span<const KernelEntry> quantized_kernel_table() {
  static const std::vector<KernelEntry> table = [] {
    std::vector<KernelEntry> entries;
    for (const auto& unit : {
             kPortableQuantized,
             kQuantizedRows,
#if AETHER_BUILT_AVX2MADD
             kAvx2Quantized,
#endif
#if AETHER_BUILT_AVX2VNNI
             kAvx2VnniQuantized,
#endif
#if AETHER_BUILT_AVX512MADD
             kAvx512Quantized,
#endif
#if AETHER_BUILT_AVX512VNNI
             kAvx512VnniQuantized,
#endif
#if AETHER_BUILT_AMX
             kAmxQuantized,
#endif
#if AETHER_BUILT_NEON
             kNeonQuantized,
#endif
#if AETHER_BUILT_NEONDOT
             kNeonDotQuantized,
#endif
#if AETHER_BUILT_NEONI8MM
             kNeonI8mmQuantized,
#endif
         }) {
      entries.insert(entries.end(), unit.begin(), unit.end());
    }
    return entries;
  }();
  return table;
}

}  // namespace aether::cpu
