// A model of the tile unit in software: the results of every instruction bit by bit, on any CPU.
//
// TDPBF16PS follows the operation in Intel's manual (Software Developer's Manual, volume 2): from zero, the even and
// the odd elements of the pairs are two chains of fused multiply-adds; their sum is then added to the accumulator. Each
// of these operations rounds to nearest even, takes subnormal operands as zeros, and replaces subnormal results by
// zeros (after rounding, as MXCSR.FTZ does). MXCSR itself is neither read nor written. A NaN's bits are not modelled.
//
// The model ends the process where the hardware would raise #UD or #GP.
#ifndef AETHER_CPU_TILE_MODEL_H
#define AETHER_CPU_TILE_MODEL_H

#include <cstdint>

#include "kernels/tile_product.h"

namespace aether::cpu {

// x · y + z of values that a bfloat16 (x, y) and a float hold.
float fused_multiply_add_flushed(float x, float y, float z) noexcept;
float add_flushed(float x, float y) noexcept;

struct TileModel {
  static void configure(const TileConfig& config) noexcept;
  static void release() noexcept;
  template <int T>
  static void load(const void* address, int64_t stride) noexcept {
    load(T, address, stride);
  }
  template <int T>
  static void store(void* address, int64_t stride) noexcept {
    store(T, address, stride);
  }
  template <int T>
  static void zero() noexcept {
    zero(T);
  }
  template <int C, int A, int B>
  static void dot_bfloat16() noexcept {
    dot_bfloat16(C, A, B);
  }
  template <int C, int A, int B>
  static void dot_int8() noexcept {
    dot_int8(C, A, B);
  }

 private:
  static void load(int tile, const void* address, int64_t stride) noexcept;
  static void store(int tile, void* address, int64_t stride) noexcept;
  static void zero(int tile) noexcept;
  static void dot_bfloat16(int c, int a, int b) noexcept;
  static void dot_int8(int c, int a, int b) noexcept;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_TILE_MODEL_H
