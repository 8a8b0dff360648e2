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

// The offset of a 16-byte piece of a row of an operand, in pieces.
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

// Waits until at most `kPending` groups of this warpgroup are still in flight.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
#ifdef AETHER_EMULATED
  __syncwarp();
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// A barrier of `count` threads of the block; number 0 is that of __syncthreads.
__device__ __forceinline__ void synchronize_threads(int barrier, int count) {
#ifdef AETHER_EMULATED
  emulation::barrier(barrier, count, {});
#else
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
#endif
}

// Makes what was copied or stored to shared memory visible to products: before the barrier in threads that wrote, or
// after it in those that multiply.
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

#define AETHER_PLACES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define AETHER_PLACES_16 AETHER_PLACES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define AETHER_PLACES_32                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define AETHER_PLACES_64                                                               \
  AETHER_PLACES_32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define AETHER_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define AETHER_SUMS_16(i) AETHER_SUMS_4(i), AETHER_SUMS_4(i + 4), AETHER_SUMS_4(i + 8), AETHER_SUMS_4(i + 12)
#define AETHER_SUMS_8 AETHER_SUMS_4(0), AETHER_SUMS_4(4)
#define AETHER_SUMS_32 AETHER_SUMS_16(0), AETHER_SUMS_16(16)
#define AETHER_SUMS_64 AETHER_SUMS_32, AETHER_SUMS_16(32), AETHER_SUMS_16(48)
#define AETHER_WGMMA(columns, type, is_sum_place, places, operands)                                              \
  "{.reg .pred p; setp.ne.b32 p, " is_sum_place ", 0; wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type \
  "." type " {" places "}, " operands ";}"

#define AETHER_UNWRAP(...) __VA_ARGS__
// wgmma<T> with these parameters, for both dtypes: `sums` are in parentheses, and the inputs of the assembler follow.
#define AETHER_WGMMA_OVERLOAD(parameters, columns, is_sum_place, places, operands, sums, ...)                         \
  template <class T>                                                                                                  \
  __device__ __forceinline__ void wgmma parameters {                                                                  \
    if constexpr (std::is_same_v<T, float16>) {                                                                       \
      asm volatile(AETHER_WGMMA(columns, "f16", is_sum_place, places, operands) : AETHER_UNWRAP sums : __VA_ARGS__);  \
    } else {                                                                                                          \
      asm volatile(AETHER_WGMMA(columns, "bf16", is_sum_place, places, operands) : AETHER_UNWRAP sums : __VA_ARGS__); \
    }                                                                                                                 \
  }

// c = (is_sum ? c : 0) + A Bᵀ for rows of 16 values, 64 of A and 16, 32, 64 or 128 of B.
#define AETHER_WGMMA_TILES(registers, columns, is_sum_place, places, operands, sums)                                \
  AETHER_WGMMA_OVERLOAD((float (&c)[registers], uint64_t a, uint64_t b, int is_sum), columns, is_sum_place, places, \
                        operands ", p, 1, 1, 0, 0", sums, "l"(a), "l"(b), "r"(is_sum))
AETHER_WGMMA_TILES(8, "16", "%10", AETHER_PLACES_8, "%8, %9", (AETHER_SUMS_8))
AETHER_WGMMA_TILES(16, "32", "%18", AETHER_PLACES_16, "%16, %17", (AETHER_SUMS_16(0)))
AETHER_WGMMA_TILES(32, "64", "%34", AETHER_PLACES_32, "%32, %33", (AETHER_SUMS_32))
AETHER_WGMMA_TILES(64, "128", "%66", AETHER_PLACES_64, "%64, %65", (AETHER_SUMS_64))

// c = (is_sum ? c : 0) + A Bᵀ for A [64, 16] in registers and 16, 32, 64 or 128 rows of 16 values of B.
#define AETHER_WGMMA_FRAGMENT(registers, columns, is_sum_place, places, operands, sums)                       \
  AETHER_WGMMA_OVERLOAD((float (&c)[registers], const uint32_t (&a)[4], uint64_t b, int is_sum), columns,     \
                        is_sum_place, places, operands ", p, 1, 1, 0", sums, "r"(a[0]), "r"(a[1]), "r"(a[2]), \
                        "r"(a[3]), "l"(b), "r"(is_sum))
AETHER_WGMMA_FRAGMENT(8, "16", "%13", AETHER_PLACES_8, "{%8, %9, %10, %11}, %12", (AETHER_SUMS_8))
AETHER_WGMMA_FRAGMENT(16, "32", "%21", AETHER_PLACES_16, "{%16, %17, %18, %19}, %20", (AETHER_SUMS_16(0)))
AETHER_WGMMA_FRAGMENT(32, "64", "%37", AETHER_PLACES_32, "{%32, %33, %34, %35}, %36", (AETHER_SUMS_32))
AETHER_WGMMA_FRAGMENT(64, "128", "%69", AETHER_PLACES_64, "{%64, %65, %66, %67}, %68", (AETHER_SUMS_64))

// c += A B for A [64, 16] in registers and 16 rows of 64 or 128 values of B.
#define AETHER_WGMMA_TRANSPOSED(registers, columns, is_sum_place, places, operands, sums)                           \
  AETHER_WGMMA_OVERLOAD((float (&c)[registers], const uint32_t (&a)[4], uint64_t b), columns, is_sum_place, places, \
                        operands ", p, 1, 1, 1", sums, "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))
AETHER_WGMMA_TRANSPOSED(32, "64", "%37", AETHER_PLACES_32, "{%32, %33, %34, %35}, %36", (AETHER_SUMS_32))
AETHER_WGMMA_TRANSPOSED(64, "128", "%69", AETHER_PLACES_64, "{%64, %65, %66, %67}, %68", (AETHER_SUMS_64))
#undef AETHER_PLACES_8
#undef AETHER_PLACES_16
#undef AETHER_PLACES_32
#undef AETHER_PLACES_64
#undef AETHER_SUMS_4
#undef AETHER_SUMS_8
#undef AETHER_SUMS_16
#undef AETHER_SUMS_32
#undef AETHER_SUMS_64
#undef AETHER_WGMMA
#undef AETHER_UNWRAP
#undef AETHER_WGMMA_OVERLOAD
#undef AETHER_WGMMA_TILES
#undef AETHER_WGMMA_FRAGMENT
#undef AETHER_WGMMA_TRANSPOSED
#endif

// Issues c = (is_sum ? c : 0) + A Bᵀ for tiles A of 64 rows and B of 2 kRegisters rows. `has_rows` says whether the
// rows of A that this warp gets sums of are such: others may be anything, and so are their sums.
template <class T, int kRegisters>
__device__ __forceinline__ void multiply_tiles(float (&c)[kRegisters], const Vector<T>* a, const Vector<T>* b,
                                               bool is_sum, [[maybe_unused]] bool has_rows = true) {
#ifdef AETHER_EMULATED
  if (!has_rows) {
    return;
  }
  const int lane = lane_index(), first_row = warp_index() % 4 * 16 + lane / 4;
  for (int r = 0; r < kRegisters; ++r) {
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

#ifdef AETHER_EMULATED
// Rows g and g + 8 of a warp's fragment of A.
template <class T>
void gather_fragment(T (&rows)[2][16], const uint32_t (&a)[4]) {
  for (int i = 0; i < 4; ++i) {
    for (int member = 0; member < 4; ++member) {
      const uint32_t pair = __shfl_sync(kFullWarp, a[i], lane_index() / 4 * 4 + member);
      memcpy(&rows[i % 2][2 * member + 8 * (i / 2)], &pair, sizeof pair);
    }
  }
}
#endif

// Issues c += A B for A [64, 16] in registers (the layout of mma.m16n8k16 in each warp) and 16 rows B of
// 2 kRegisters columns. Columns 64 c … 64 c + 63 are a tile of `kTileRows` rows.
template <class T, int kTileRows, int kRegisters>
__device__ __forceinline__ void add_product(float (&c)[kRegisters], const uint32_t (&a)[4], const Vector<T>* b,
                                            int first_row) {
#ifdef AETHER_EMULATED
  const int lane = lane_index();
  T left[2][16];
  gather_fragment(left, a);
  for (int r = 0; r < kRegisters; ++r) {
    const int column = r / 4 * 8 + lane % 4 * 2 + r % 2;
    for (int k = 0; k < 16; ++k) {
      const Vector<T> right =
          b[column / 64 * kTileRows * kPiecesOfRow + swizzled_piece(first_row + k, column % 64 / 8)];
      c[r] += to_float(left[r / 2 % 2][k]) * to_float(right.values[column % 8]);
    }
  }
#else
  constexpr int kChunkBytes = kTileRows * kPiecesOfRow * kVectorBytes;
  wgmma<T>(c, a, operand_descriptor(b + first_row * kPiecesOfRow, kChunkBytes));
#endif
}

// Issues c = (is_sum ? c : 0) + A Bᵀ for A [64, 16] in registers (the layout of mma.m16n8k16 in each warp) and the
// values 16 step … 16 step + 15 of a tile B of 2 kRegisters rows.
template <class T, int kRegisters>
__device__ __forceinline__ void multiply_fragment(float (&c)[kRegisters], const uint32_t (&a)[4], const Vector<T>* b,
                                                  int step, bool is_sum) {
#ifdef AETHER_EMULATED
  T left[2][16];
  gather_fragment(left, a);
  for (int r = 0; r < kRegisters; ++r) {
    const int column = r / 4 * 8 + lane_index() % 4 * 2 + r % 2;
    float sum = is_sum ? c[r] : 0.0f;
    for (int piece = 0; piece < 2; ++piece) {
      const Vector<T> right = b[swizzled_piece(column, 2 * step + piece)];
      for (int k = 0; k < Vector<T>::size; ++k) {
        sum += to_float(left[r / 2 % 2][piece * Vector<T>::size + k]) * to_float(right.values[k]);
      }
    }
    c[r] = sum;
  }
#else
  wgmma<T>(c, a, operand_descriptor(b) + 2 * step, is_sum);  // 32 bytes for each step
#endif
}

}  // namespace aether
