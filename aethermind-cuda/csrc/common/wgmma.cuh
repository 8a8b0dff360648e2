// Products of a warpgroup (four warps) by wgmma (PTX ISA 9.7.15; sm_90a): float16 or bfloat16 operands, float32
// accumulators in registers. They are asynchronous.
//
// Operands in shared memory are tiles of rows of 64 values (128 bytes), in the layout of the 128-byte swizzle: piece p
// (16 bytes) of row r is at piece p ^ r % 8. A tile begins at a multiple of 1,024 bytes.
//
// Thread t = 32 w + 4 g + i holds of C [64, N] in c[4 j + 2 h + e] row 16 w + g + 8 h, column 8 j + 2 i + e.
#pragma once

#include <type_traits>

#include "common/memory.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

// Declares `Vector<type>* name`, the dynamic shared memory of the block, at a multiple of 1,024 bytes: static shared
// memory may not precede it.
#ifdef AETHER_EMULATED
#define AETHER_OPERAND_MEMORY(type, name) AETHER_DYNAMIC_SHARED(aether::Vector<type>, name)
#else
#define AETHER_OPERAND_MEMORY(type, name)                           \
  extern __shared__ __align__(1024) unsigned char aether_shared_[]; \
  auto* const name = reinterpret_cast<aether::Vector<type>*>(aether_shared_)
#endif

namespace aether {

constexpr int kTileDepth = 64;
constexpr int kPiecesOfRow = 8;  // of 16 bytes

// Where a piece of a row of an operand is, in pieces.
__device__ __forceinline__ int swizzled_piece(int row, int piece) { return row * kPiecesOfRow + (piece ^ row % 8); }

// Before the first product of a group: orders it behind earlier accesses to the accumulators.
__device__ __forceinline__ void begin_products() {
#ifndef AETHER_EMULATED
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Closes the group of the products issued since the last call.
__device__ __forceinline__ void commit_products() {
#ifndef AETHER_EMULATED
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most `kPending` groups of this warpgroup are still under way.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
#ifndef AETHER_EMULATED
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// Behind the barrier after which ordinary stores and cp.async to shared memory are visible: makes them so to products.
__device__ __forceinline__ void publish_operands() {
#ifndef AETHER_EMULATED
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#ifndef AETHER_EMULATED
// The descriptor of a tile (PTX ISA 9.7.15.5.1): address, stride of 1,024 bytes between groups of 8 rows, 128-byte
// swizzle. Chunks of 64 columns of a transposed operand are `chunk_bytes` apart; others have one.
__device__ __forceinline__ uint64_t operand_descriptor(const void* tile, int chunk_bytes = 16) {
  const uint64_t address = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(chunk_bytes >> 4) << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// clang-format off
#define AETHER_WGMMA_64(type)                                                                                          \
  asm volatile(                                                                                                        \
      "{.reg .pred p; setp.ne.b32 p, %34, 0; "                                                                         \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                                 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "                          \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                             \
      "%32, %33, p, 1, 1, 0, 0;}"                                                                                      \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),                \
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),          \
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),        \
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])         \
      : "l"(a), "l"(b), "r"(is_sum))

#define AETHER_WGMMA_128(type)                                                                                         \
  asm volatile(                                                                                                        \
      "{.reg .pred p; setp.ne.b32 p, %69, 0; "                                                                         \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "                          \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "                          \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "                          \
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                                                       \
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;}"                                                                        \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),                \
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),          \
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),        \
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),        \
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),        \
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),        \
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),        \
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(is_sum))
// clang-format on

// c = (is_sum ? c : 0) + A Bᵀ for 64 rows of 16 values of A and B.
template <class T>
__device__ __forceinline__ void wgmma(float (&c)[32], uint64_t a, uint64_t b, int is_sum) {
  if constexpr (std::is_same_v<T, float16>) {
    AETHER_WGMMA_64("f16");
  } else {
    AETHER_WGMMA_64("bf16");
  }
}

// c = (is_sum ? c : 0) + A B for A [64, 16] in registers and 16 rows of 128 values of B.
template <class T>
__device__ __forceinline__ void wgmma(float (&c)[64], const uint32_t (&a)[4], uint64_t b, int is_sum) {
  if constexpr (std::is_same_v<T, float16>) {
    AETHER_WGMMA_128("f16");
  } else {
    AETHER_WGMMA_128("bf16");
  }
}
#undef AETHER_WGMMA_64
#undef AETHER_WGMMA_128
#endif

// Issues c = (is_sum ? c : 0) + A Bᵀ for tiles A and B of 64 rows.
template <class T>
__device__ __forceinline__ void multiply_tiles(float (&c)[32], const Vector<T>* a, const Vector<T>* b, bool is_sum) {
#ifdef AETHER_EMULATED
  const int lane = lane_index(), first_row = warp_index() % 4 * 16 + lane / 4;
  for (int r = 0; r < 32; ++r) {
    const int row = first_row + r / 2 % 2 * 8, column = r / 4 * 8 + lane % 4 * 2 + r % 2;
    float sum = is_sum ? c[r] : 0.0f;
    for (int piece = 0; piece < kPiecesOfRow; ++piece) {
      const Vector<T> left = a[swizzled_piece(row, piece)], right = b[swizzled_piece(column, piece)];
      for (int k = 0; k < Vector<T>::size; ++k) sum += to_float(left.values[k]) * to_float(right.values[k]);
    }
    c[r] = sum;
  }
#else
  const uint64_t first = operand_descriptor(a), second = operand_descriptor(b);
#pragma unroll
  for (int k = 0; k < kTileDepth / 16; ++k) {
    wgmma<T>(c, first + 2 * k, second + 2 * k, is_sum || k > 0);  // 32 bytes further
  }
#endif
}

// Issues c += A B for A [64, 16] in registers (the layout of mma.m16n8k16 in each warp) and 16 rows B of 128 columns.
// Columns 64 c … 64 c + 63 are a tile of `kTileRows` rows.
template <class T, int kTileRows>
__device__ __forceinline__ void add_product(float (&c)[64], const uint32_t (&a)[4], const Vector<T>* b, int first_row) {
#ifdef AETHER_EMULATED
  const int lane = lane_index();
  T left[2][16];
  for (int i = 0; i < 4; ++i) {
    for (int member = 0; member < 4; ++member) {
      const uint32_t pair = __shfl_sync(kFullWarp, a[i], lane / 4 * 4 + member);
      memcpy(&left[i % 2][2 * member + 8 * (i / 2)], &pair, sizeof pair);
    }
  }
  for (int r = 0; r < 64; ++r) {
    const int column = r / 4 * 8 + lane % 4 * 2 + r % 2;
    for (int k = 0; k < 16; ++k) {
      const Vector<T> right =
          b[column / 64 * kTileRows * kPiecesOfRow + swizzled_piece(first_row + k, column % 64 / 8)];
      c[r] += to_float(left[r / 2 % 2][k]) * to_float(right.values[column % 8]);
    }
  }
#else
  constexpr int kChunkBytes = kTileRows * kPiecesOfRow * kVectorBytes;
  wgmma<T>(c, a, operand_descriptor(b + first_row * kPiecesOfRow, kChunkBytes), 1);
#endif
}

}  // namespace aether
