// simd/avx512_bf16.h plus the tile instructions of Intel AMX.
//
// They are written in assembly: some compilers' intrinsics declare too little of the memory that LDTILECFG and
// TILELOADD read. Every function clobbers "memory", which also keeps their order. No compiler allocates tile registers
// by itself.
#pragma once

#include "kernels/tile_product.h"
#include "simd/avx512_bf16.h"

#define AETHER_HAS_TILES 1

namespace aether::cpu::AETHER_ISA {

// Sixteen pairs of bfloat16: the first element of each from `first`, the second from `second`.
AETHER_INLINE void store_pairs(char* step, Vec first, Vec second) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  _mm512_storeu_si512(step, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
}

struct HardwareTiles {
  AETHER_INLINE static void configure(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  template <int T>
  AETHER_INLINE static void load(const void* address, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(address), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  AETHER_INLINE static void store(void* address, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(address), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  AETHER_INLINE static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T) : "memory");
  }
  template <int C, int A, int B>
  AETHER_INLINE static void dot_bfloat16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B) : "memory");
  }
  template <int C, int A, int B>
  AETHER_INLINE static void dot_int8() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B) : "memory");
  }
  static void release() { __asm__ volatile("tilerelease" : : : "memory"); }
};

}  // namespace aether::cpu::AETHER_ISA
