// Products of a warpgroup by wgmma whose first operand is in registers: see common/wgmma.cuh.
#pragma once

#include "common/wgmma.cuh"

namespace aether {

#ifndef AETHER_EMULATED
#define AETHER_PLACES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define AETHER_PLACES_16 AETHER_PLACES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define AETHER_PLACES_32 \
  AETHER_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define AETHER_PLACES_64                                                               \
  AETHER_PLACES_32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define AETHER_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define AETHER_SUMS_8 AETHER_SUMS_4(0), AETHER_SUMS_4(4)
#define AETHER_SUMS_16 AETHER_SUMS_8, AETHER_SUMS_4(8), AETHER_SUMS_4(12)
#define AETHER_SUMS_32 AETHER_SUMS_16, AETHER_SUMS_4(16), AETHER_SUMS_4(20), AETHER_SUMS_4(24), AETHER_SUMS_4(28)
#define AETHER_SUMS_64                                                                                           \
  AETHER_SUMS_32, AETHER_SUMS_4(32), AETHER_SUMS_4(36), AETHER_SUMS_4(40), AETHER_SUMS_4(44), AETHER_SUMS_4(48), \
      AETHER_SUMS_4(52), AETHER_SUMS_4(56), AETHER_SUMS_4(60)
#define AETHER_FRAGMENT_WGMMA(columns, type, places, a0, a1, a2, a3, b_place, is_sum_place, ...)               \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %" is_sum_place ", 0; wgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " {" places "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_place       \
               ", p, 1, 1, 0;}"                                                                                \
               : __VA_ARGS__                                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(is_sum))
// c = (is_sum ? c : 0) + A Bᵀ for A [64, 16] in registers and 16 … 128 rows of 16 values of B.
#define AETHER_FRAGMENT_WGMMA_OF(registers, columns, places, a0, a1, a2, a3, b_place, is_sum_place, ...)    \
  template <class T>                                                                                        \
  __device__ __forceinline__ void fragment_wgmma(float (&c)[registers], const uint32_t (&a)[4], uint64_t b, \
                                                 int is_sum) {                                              \
    if constexpr (std::is_same_v<T, float16>) {                                                             \
      AETHER_FRAGMENT_WGMMA(columns, "f16", places, a0, a1, a2, a3, b_place, is_sum_place, __VA_ARGS__);    \
    } else {                                                                                                \
      AETHER_FRAGMENT_WGMMA(columns, "bf16", places, a0, a1, a2, a3, b_place, is_sum_place, __VA_ARGS__);   \
    }                                                                                                       \
  }
AETHER_FRAGMENT_WGMMA_OF(8, "16", AETHER_PLACES_8, "8", "9", "10", "11", "12", "13", AETHER_SUMS_8)
AETHER_FRAGMENT_WGMMA_OF(16, "32", AETHER_PLACES_16, "16", "17", "18", "19", "20", "21", AETHER_SUMS_16)
AETHER_FRAGMENT_WGMMA_OF(32, "64", AETHER_PLACES_32, "32", "33", "34", "35", "36", "37", AETHER_SUMS_32)
AETHER_FRAGMENT_WGMMA_OF(64, "128", AETHER_PLACES_64, "64", "65", "66", "67", "68", "69", AETHER_SUMS_64)
#undef AETHER_PLACES_8
#undef AETHER_PLACES_16
#undef AETHER_PLACES_32
#undef AETHER_PLACES_64
#undef AETHER_SUMS_4
#undef AETHER_SUMS_8
#undef AETHER_SUMS_16
#undef AETHER_SUMS_32
#undef AETHER_SUMS_64
#undef AETHER_FRAGMENT_WGMMA
#undef AETHER_FRAGMENT_WGMMA_OF
#endif

// Issues c = (is_sum ? c : 0) + A Bᵀ for A [64, 16] in registers (the layout of mma.m16n8k16 in each warp) and the
// values 16 step … 16 step + 15 of a tile B of 2 kRegisters rows.
template <class T, int kRegisters>
__device__ __forceinline__ void multiply_fragment(float (&c)[kRegisters], const uint32_t (&a)[4], const Vector<T>* b,
                                                  int step, bool is_sum) {
#ifdef AETHER_EMULATED
  const int lane = lane_index();
  T left[2][16];
  for (int i = 0; i < 4; ++i) {
    for (int member = 0; member < 4; ++member) {
      const uint32_t pair = __shfl_sync(kFullWarp, a[i], lane / 4 * 4 + member);
      memcpy(&left[i % 2][2 * member + 8 * (i / 2)], &pair, sizeof pair);
    }
  }
  for (int r = 0; r < kRegisters; ++r) {
    const int column = r / 4 * 8 + lane % 4 * 2 + r % 2;
    float sum = is_sum ? c[r] : 0.0f;
    for (int k = 0; k < 16; ++k) {
      const Vector<T> right = b[swizzled_piece(column, 2 * step + k / 8)];
      sum += to_float(left[r / 2 % 2][k]) * to_float(right.values[k % 8]);
    }
    c[r] = sum;
  }
#else
  fragment_wgmma<T>(c, a, operand_descriptor(b) + 2 * step, is_sum);  // 32 bytes for each step
#endif
}

}  // namespace aether
