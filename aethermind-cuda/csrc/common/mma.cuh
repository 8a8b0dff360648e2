// Tensor core instructions of one warp: ldmatrix and mma.m16n8k16 (PTX ISA 9.7.14), float16 or bfloat16 with float32
// accumulators.
//
// Thread t = 4 g + i of a warp holds
//
//   A [16, 16]: a[0] rows g, a[1] rows g + 8, columns 2i, 2i + 1; a[2], a[3] the same rows, columns + 8;
//   B [16, 8]:  b[0] rows 2i, 2i + 1 of column g; b[1] rows + 8;
//   C [16, 8]:  c[0], c[1] row g, columns 2i, 2i + 1; c[2], c[3] row g + 8.
#pragma once

#include <type_traits>

#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

// Loads four 8 x 8 matrices: threads 8m … 8m + 7 pass the row addresses of matrix m; out[m] is a pair of one row.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* row) {
#ifdef AETHER_EMULATED
  emulation::ldmatrix(out, 4, false, row);
#else
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#endif
}

// As `load_matrices`, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], const void* row) {
#ifdef AETHER_EMULATED
  emulation::ldmatrix(out, 4, true, row);
#else
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#endif
}

// Rounds two values to T and packs them, the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t packed(float first, float second);
template <>
__device__ __forceinline__ uint32_t packed<float16>(float first, float second) {
  const __half2 both = __floats2half2_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&both);
}
template <>
__device__ __forceinline__ uint32_t packed<bfloat16>(float first, float second) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// d = A B + c, accumulated in float32.
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             const float (&c)[4]) {
  constexpr bool kIsHalf = std::is_same_v<T, float16>;
#ifdef AETHER_EMULATED
  const uint32_t b[2] = {b0, b1};
  kIsHalf ? emulation::mma_m16n8k16_f16(d, a, b, c) : emulation::mma_m16n8k16_bf16(d, a, b, c);
#else
  if constexpr (kIsHalf) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
  }
#endif
}

// c += A B.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_add<T>(c, a, b0, b1, c);
}

// c = A B.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const float zeros[4] = {};
  multiply_add<T>(c, a, b0, b1, zeros);
}

}  // namespace aether
