// Instruction sets that this CPU has and the operating system has enabled.
#ifndef AETHER_CPU_CPU_FEATURES_H
#define AETHER_CPU_CPU_FEATURES_H

#include <string>
#include <vector>

namespace aether::cpu {

struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx_vnni = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool amx_tile = false;
  bool amx_bf16 = false;
  bool amx_int8 = false;

  bool asimd = false;
  bool fphp = false;
  bool asimdhp = false;
  bool asimddp = false;
  bool bf16 = false;
  bool i8mm = false;

  // Everything that files compiled as *_avx2.cc may use.
  bool has_avx2() const noexcept { return avx2 && fma && f16c; }
  // Everything that files compiled as *_avx2vnni.cc may use.
  bool has_avx2vnni() const noexcept { return has_avx2() && avx_vnni; }
  // Everything that files compiled as *_avx512.cc may use.
  bool has_avx512() const noexcept { return has_avx2() && avx512f && avx512bw && avx512dq && avx512vl; }
  // Everything that files compiled as *_avx512vnni.cc may use.
  bool has_avx512vnni() const noexcept { return has_avx512() && avx512_vnni; }
  // Everything that files compiled as *_avx512bf16.cc may use.
  bool has_avx512bf16() const noexcept { return has_avx512vnni() && avx512_bf16; }
  // Everything that files compiled as *_amx.cc may use, where the CPU or the model (tile_unit.h) has the tile unit.
  bool has_amx() const noexcept { return has_avx512bf16() && amx_tile && amx_bf16 && amx_int8; }
  // The same without the model.
  bool has_amx_hardware() const noexcept;
  // Everything that files compiled as *_neon.cc may use.
  bool has_neon() const noexcept { return asimd; }
  // Everything that files compiled as *_neondot.cc may use.
  bool has_neondot() const noexcept { return has_neon() && asimddp; }
  // Everything that files compiled as *_neoni8mm.cc may use.
  bool has_neoni8mm() const noexcept { return has_neondot() && i8mm; }

  // Names of the features present, in the spelling of /proc/cpuinfo.
  std::vector<std::string> names() const;
};

// The CPU's tile unit (Intel AMX): present and usable, or why not.
enum class TileSupport {
  kPresent,
  kNotInCpu,      // CPUID has no AMX with bfloat16 and int8, or no palette of eight tiles of 16 rows x 64 bytes
  kNotSaved,      // the operating system or the hypervisor does not save tile registers (XCR0)
  kNotPermitted,  // Linux refused this process the tile registers (arch_prctl)
};

// Asks Linux for the permission to use tile registers, where the CPU has them. The process keeps it.
TileSupport tile_support() noexcept;

// Whether AETHERMIND_CPU_TILES=model replaces the tile unit by its model in software, for tests.
bool is_tile_unit_modelled() noexcept;

// Detected once; all false on architectures other than x86-64 and aarch64. Safe from any thread.
const CpuFeatures& cpu_features() noexcept;

}  // namespace aether::cpu

#endif  // AETHER_CPU_CPU_FEATURES_H
