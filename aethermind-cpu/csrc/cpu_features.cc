#include "cpu_features.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace aether::cpu {
namespace {

#if defined(__x86_64__)

bool bit(uint32_t word, int index) { return (word >> index) & 1u; }

// The register state that the operating system saves: bits 1-2 are xmm and ymm, bits 5-7 the AVX-512 state.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

CpuFeatures detect() {
  CpuFeatures features;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !bit(ecx, 27)) return features;
  const uint64_t state = saved_state();
  const bool has_ymm = (state & 0x6) == 0x6;
  const bool has_zmm = has_ymm && (state & 0xe0) == 0xe0;
  features.fma = has_ymm && bit(ecx, 12);
  features.f16c = has_ymm && bit(ecx, 29);
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
  const uint32_t num_subleaves = eax;
  features.avx2 = has_ymm && bit(ebx, 5);
  features.avx512f = has_zmm && bit(ebx, 16);
  features.avx512dq = has_zmm && bit(ebx, 17);
  features.avx512bw = has_zmm && bit(ebx, 30);
  features.avx512vl = has_zmm && bit(ebx, 31);
  features.avx512_vnni = has_zmm && bit(ecx, 11);
  if (num_subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
    features.avx_vnni = has_ymm && bit(eax, 4);
    features.avx512_bf16 = has_zmm && bit(eax, 5);
  }
  return features;
}

#elif defined(__aarch64__)

CpuFeatures detect() {
  CpuFeatures features;
  features.asimd = true;
#if defined(__linux__)
  const uint64_t words = getauxval(AT_HWCAP), more_words = getauxval(AT_HWCAP2);
  features.fphp = words & HWCAP_FPHP;
  features.asimdhp = words & HWCAP_ASIMDHP;
  features.asimddp = words & HWCAP_ASIMDDP;
  features.bf16 = more_words & HWCAP2_BF16;
  features.i8mm = more_words & HWCAP2_I8MM;
#endif
  return features;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

std::vector<std::string> CpuFeatures::names() const {
  const std::pair<const char*, bool> all[] = {
      {"avx2", avx2},
      {"fma", fma},
      {"f16c", f16c},
      {"avx_vnni", avx_vnni},
      {"avx512f", avx512f},
      {"avx512bw", avx512bw},
      {"avx512dq", avx512dq},
      {"avx512vl", avx512vl},
      {"avx512_bf16", avx512_bf16},
      {"avx512_vnni", avx512_vnni},
      {"asimd", asimd},
      {"fphp", fphp},
      {"asimdhp", asimdhp},
      {"asimddp", asimddp},
      {"bf16", bf16},
      {"i8mm", i8mm},
  };
  std::vector<std::string> present;
  for (const auto& [name, is_present] : all) {
    if (is_present) present.emplace_back(name);
  }
  return present;
}

const CpuFeatures& cpu_features() noexcept {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace aether::cpu
