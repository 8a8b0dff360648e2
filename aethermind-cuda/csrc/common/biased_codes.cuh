// Conversion of integer codes to T without a subtraction: codes in low mantissa bits of a power of two read as that
// power plus the code. Products subtract that bias, and the zero point, by a product of the inputs with a constant.
#pragma once

#include "common/quantized_weight.cuh"

namespace aether {

// (~value & mask) | bits in one lop3.
__device__ __forceinline__ uint32_t masked_not_or(uint32_t value, uint32_t mask, uint32_t bits) {
#ifdef AETHER_EMULATED
  return (~value & mask) | bits;
#else
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xae;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
#endif
}

// value = code + kBias. A code of one bit counts twice, since it means 2 · code - 1.
template <class T, int kBits>
struct BiasedCodes {
  static constexpr bool kIsHalf = std::is_same_v<T, float16>;
  // The mantissa of bfloat16 has seven bits: its eighth selects what is subtracted.
  static constexpr bool kIsSplit = !kIsHalf && kBits == 8;
  static constexpr int kBias = kIsSplit ? -128 : !kIsHalf ? 128 : kBits == 8 ? 1024 : 64;
  static constexpr uint32_t kPower = (!kIsHalf ? 0x4300u : kBits == 8 ? 0x6400u : 0x5400u) * 0x10001u;
  // The bit with a value of 1 is bit 0 in 128 and 1024, and bit 4 in 64.
  static constexpr int kPosition = (kIsHalf && kBits < 8 ? 4 : 0) + (kBits == 1 ? 1 : 0);

  // The codes at `bit` of the halves of a word, converted. `bit` is known at compile time.
  __device__ __forceinline__ static uint32_t pair(uint32_t word, int bit) {
    const uint32_t codes = bit >= kPosition ? word >> (bit - kPosition) : word << (kPosition - bit);
    if constexpr (kIsSplit) {
      return pair_difference<T>(masked_or(codes, 0x007f007fu, kPower), masked_not_or(codes, 0x00800080u, kPower));
    } else {
      return masked_or(codes, (((1u << kBits) - 1) << kPosition) * 0x10001u, kPower);
    }
  }

  // -(zero + kBias) in both halves.
  __device__ __forceinline__ static uint32_t negated_pair(uint32_t zero) {
    return pair(zero * 0x10001u, 0) ^ 0x80008000u;
  }
};

}  // namespace aether
