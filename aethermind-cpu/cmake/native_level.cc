// Prints the highest level of this machine, for AETHER_LEVELS=native.
#include <cstdio>

#include "../csrc/cpu_features.cc"

int main() {
  const aether::cpu::CpuFeatures& cpu = aether::cpu::cpu_features();
  std::puts(cpu.has_amx()          ? "amx"
            : cpu.has_avx512bf16() ? "avx512_bf16"
            : cpu.has_avx512vnni() ? "avx512_vnni"
            : cpu.has_avx512()     ? "avx512"
            : cpu.has_avx2vnni()   ? "avx2_vnni"
            : cpu.has_avx2()       ? "avx2"
            : cpu.has_neoni8mm()   ? "neon_i8mm"
            : cpu.has_neondot()    ? "neon_dot"
            : cpu.has_neon()       ? "neon"
                                   : "portable");
}
