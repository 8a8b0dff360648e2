#include "cpu_features.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
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
  features.amx_tile = features.amx_bf16 = features.amx_int8 =
      is_tile_unit_modelled() || tile_support() == TileSupport::kPresent;
  return features;
}

// Palette 1 of the tile registers: eight of 16 rows x 64 bytes. Some hypervisors report AMX without it.
bool has_tile_palette() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(0x1d, 0, &eax, &ebx, &ecx, &edx) || eax < 1) return false;
  if (!__get_cpuid_count(0x1d, 1, &eax, &ebx, &ecx, &edx)) return false;
  const uint32_t num_tiles = ebx >> 16, row_bytes = ebx & 0xffff, num_rows = ecx & 0xffff;
  return num_tiles >= 8 && row_bytes == 64 && num_rows == 16;
}

// Linux gives a process the tile registers only on request; threads inherit the permission.
bool request_tile_registers() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

TileSupport detect_tiles() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return TileSupport::kNotInCpu;
  const bool has_saved_state = bit(ecx, 27);
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return TileSupport::kNotInCpu;
  const bool has_tiles = bit(edx, 24), has_bf16 = bit(edx, 22), has_int8 = bit(edx, 25);
  if (!has_tiles || !has_bf16 || !has_int8 || !has_tile_palette()) return TileSupport::kNotInCpu;
  constexpr uint64_t kTileState = 0x60000;  // bits 17 and 18: configuration and data
  if (!has_saved_state || (saved_state() & kTileState) != kTileState) return TileSupport::kNotSaved;
  return request_tile_registers() ? TileSupport::kPresent : TileSupport::kNotPermitted;
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

TileSupport detect_tiles() { return TileSupport::kNotInCpu; }

#else

CpuFeatures detect() { return {}; }

TileSupport detect_tiles() { return TileSupport::kNotInCpu; }

#endif

}  // namespace

bool CpuFeatures::has_amx_hardware() const noexcept { return has_amx() && tile_support() == TileSupport::kPresent; }

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
      {"amx_tile", amx_tile},
      {"amx_bf16", amx_bf16},
      {"amx_int8", amx_int8},
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

TileSupport tile_support() noexcept {
  static const TileSupport support = detect_tiles();
  return support;
}

bool is_tile_unit_modelled() noexcept {
  static const char* value = std::getenv("AETHERMIND_CPU_TILES");
  return value != nullptr && std::string_view(value) == "model";
}

const CpuFeatures& cpu_features() noexcept {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace aether::cpu
