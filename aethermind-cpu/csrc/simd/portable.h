// Sixteen float lanes in plain C++ (GCC and Clang vector extensions), for any CPU.
//
// Each translation unit includes one header of csrc/simd, with AETHER_ISA as the namespace of everything compiled
// there: the linker so never merges functions that were compiled with different machine flags. For the same reason the
// kernels call no inline functions of std.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/bfloat16.h"
#include "simd/float16.h"
#include "simd/tuning.h"

#define AETHER_INLINE inline __attribute__((always_inline))

namespace aether::cpu::AETHER_ISA {

inline constexpr int kLanes = 16;

// Register tile of the matrix kernels, for sixteen 128-bit registers: rows × panels of 16 columns.
inline constexpr int kTileRows = 2;
inline constexpr int kTilePanels = 1;

inline constexpr Tuning kTuning = {};

using Float4 [[gnu::vector_size(16)]] = float;
using Int4 [[gnu::vector_size(16)]] = int32_t;
using UInt4 [[gnu::vector_size(16)]] = uint32_t;
using UShort4 [[gnu::vector_size(8)]] = uint16_t;

struct Vec {
  Float4 a, b, c, d;
};

template <class F>
AETHER_INLINE Vec map(const Vec& x, F f) {
  return {f(x.a), f(x.b), f(x.c), f(x.d)};
}
template <class F>
AETHER_INLINE Vec map(const Vec& x, const Vec& y, F f) {
  return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)};
}

AETHER_INLINE Vec operator+(const Vec& x, const Vec& y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
AETHER_INLINE Vec operator-(const Vec& x, const Vec& y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
AETHER_INLINE Vec operator*(const Vec& x, const Vec& y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
AETHER_INLINE Vec operator/(const Vec& x, const Vec& y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
AETHER_INLINE Vec operator-(const Vec& x) { return {-x.a, -x.b, -x.c, -x.d}; }

AETHER_INLINE Vec set1(float x) {
  const Float4 v = {x, x, x, x};
  return {v, v, v, v};
}
AETHER_INLINE Vec zero() { return set1(0.0f); }
AETHER_INLINE Vec fma(const Vec& x, const Vec& y, const Vec& z) { return x * y + z; }
AETHER_INLINE Vec max(const Vec& x, const Vec& y) {
  return map(x, y, [](Float4 p, Float4 q) { return p > q ? p : q; });
}
AETHER_INLINE Vec min(const Vec& x, const Vec& y) {
  return map(x, y, [](Float4 p, Float4 q) { return p < q ? p : q; });
}

AETHER_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
AETHER_INLINE void store(float* p, const Vec& v) { std::memcpy(p, &v, sizeof v); }

AETHER_INLINE Float4 widen(const uint16_t* p) {
  UShort4 h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<Float4>(__builtin_convertvector(h, UInt4) << 16);
}
AETHER_INLINE Vec load(const BFloat16* p) {
  const uint16_t* bits = &p->bits;
  return {widen(bits), widen(bits + 4), widen(bits + 8), widen(bits + 12)};
}

// Round to nearest even; NaN becomes a quiet NaN.
AETHER_INLINE void narrow(uint16_t* p, Float4 x) {
  const UInt4 u = reinterpret_cast<UInt4>(x);
  const UInt4 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const UInt4 quiet = (u >> 16) | 0x40u;
  const UShort4 h = __builtin_convertvector(x == x ? rounded : quiet, UShort4);
  std::memcpy(p, &h, sizeof h);
}
AETHER_INLINE void store(BFloat16* p, const Vec& v) {
  uint16_t* bits = &p->bits;
  narrow(bits, v.a);
  narrow(bits + 4, v.b);
  narrow(bits + 8, v.c);
  narrow(bits + 12, v.d);
}

// float16 to float32, exactly. A subnormal is a fraction of 2^-14: the difference of two normal floats.
AETHER_INLINE Float4 widen_half(const uint16_t* p) {
  UShort4 h;
  std::memcpy(&h, p, sizeof h);
  const UInt4 u = __builtin_convertvector(h, UInt4);
  const UInt4 magnitude = u & 0x7fffu;
  const UInt4 bits = magnitude << 13;
  const UInt4 normal = bits + (112u << 23);
  const UInt4 least = UInt4{} + (113u << 23);
  const UInt4 subnormal =
      reinterpret_cast<UInt4>(reinterpret_cast<Float4>(bits + least) - reinterpret_cast<Float4>(least));
  const UInt4 quiet = magnitude > 0x7c00u ? UInt4{} + 0x400000u : UInt4{};
  const UInt4 finite = magnitude < 0x400u ? subnormal : normal;
  const UInt4 value = magnitude < 0x7c00u ? finite : bits | 0x7f800000u | quiet;
  return reinterpret_cast<Float4>(value | ((u & 0x8000u) << 16));
}
AETHER_INLINE Vec load(const Float16* p) {
  const uint16_t* bits = &p->bits;
  return {widen_half(bits), widen_half(bits + 4), widen_half(bits + 8), widen_half(bits + 12)};
}

// Round to nearest even; NaN becomes a quiet NaN. Subnormal results are rounded by adding 0.5, whose unit in
// the last place is that of float16 subnormals.
AETHER_INLINE void narrow_half(uint16_t* p, Float4 x) {
  const UInt4 u = reinterpret_cast<UInt4>(x);
  const UInt4 magnitude = u & 0x7fffffffu;
  const UInt4 rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const UInt4 normal = rounded < 0x7c00u ? rounded : UInt4{} + 0x7c00u;
  const UInt4 subnormal = reinterpret_cast<UInt4>(reinterpret_cast<Float4>(magnitude) + 0.5f) - (126u << 23);
  const UInt4 quiet = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  const UInt4 number = magnitude < (113u << 23) ? subnormal : normal;
  const UInt4 value = x == x ? number : quiet;
  const UShort4 h = __builtin_convertvector(value | ((u >> 16) & 0x8000u), UShort4);
  std::memcpy(p, &h, sizeof h);
}
AETHER_INLINE void store(Float16* p, const Vec& v) {
  uint16_t* bits = &p->bits;
  narrow_half(bits, v.a);
  narrow_half(bits + 4, v.b);
  narrow_half(bits + 8, v.c);
  narrow_half(bits + 12, v.d);
}

// The first n lanes (0 ≤ n ≤ 16); the other lanes load as zero.
template <class T>
AETHER_INLINE Vec load(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}
template <class T>
AETHER_INLINE void store(T* p, const Vec& v, int64_t n) {
  T lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// The even and the odd elements of sixteen pairs.
AETHER_INLINE Vec load_even(const BFloat16* p) {
  UInt4 w[4];
  std::memcpy(w, p, sizeof w);
  return {reinterpret_cast<Float4>(w[0] << 16), reinterpret_cast<Float4>(w[1] << 16),
          reinterpret_cast<Float4>(w[2] << 16), reinterpret_cast<Float4>(w[3] << 16)};
}
AETHER_INLINE Vec load_odd(const BFloat16* p) {
  UInt4 w[4];
  std::memcpy(w, p, sizeof w);
  const UInt4 high = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
  return {reinterpret_cast<Float4>(w[0] & high), reinterpret_cast<Float4>(w[1] & high),
          reinterpret_cast<Float4>(w[2] & high), reinterpret_cast<Float4>(w[3] & high)};
}

// Sixteen 8-bit codes of a quantised KV cache (kernels/kv_quantization.h) as floats: int8, and E4M3 scaled by 2^-8. An
// E4M3 number shifted left by 7 bits is a float16; sign extension sets one bit too many, which the mask clears.
using Char16 [[gnu::vector_size(16)]] = int8_t;
using UShort16 [[gnu::vector_size(32)]] = uint16_t;
using Float16Lanes [[gnu::vector_size(64)]] = float;
AETHER_INLINE Vec load_integer_codes(const void* p) {
  Char16 codes;
  std::memcpy(&codes, p, sizeof codes);
  const Float16Lanes lanes = __builtin_convertvector(codes, Float16Lanes);
  Vec v;
  std::memcpy(&v, &lanes, sizeof v);
  return v;
}
AETHER_INLINE Vec load_e4m3_codes(const void* p) {
  Char16 codes;
  std::memcpy(&codes, p, sizeof codes);
  const UShort16 halves = (__builtin_convertvector(codes, UShort16) << 7) & 0xbfffu;
  Float16 lanes[kLanes];
  std::memcpy(lanes, &halves, sizeof lanes);
  return load(lanes);
}

// Truncates to bfloat16; exact for values that a bfloat16 holds.
AETHER_INLINE void store_exact(uint16_t* p, Float4 x) {
  const UShort4 h = __builtin_convertvector(reinterpret_cast<UInt4>(x) >> 16, UShort4);
  std::memcpy(p, &h, sizeof h);
}
AETHER_INLINE void store_exact(BFloat16* p, const Vec& v) {
  uint16_t* bits = &p->bits;
  store_exact(bits, v.a);
  store_exact(bits + 4, v.b);
  store_exact(bits + 8, v.c);
  store_exact(bits + 12, v.d);
}

// Sixteen unsigned bytes as floats; and (word >> shift) & mask of sixteen 32-bit words as floats (mask below 2^24).
using UChar4 [[gnu::vector_size(4)]] = uint8_t;
AETHER_INLINE Float4 widen_bytes(const uint8_t* p) {
  UChar4 bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Int4), Float4);
}
AETHER_INLINE Vec load_bytes(const uint8_t* p) {
  return {widen_bytes(p), widen_bytes(p + 4), widen_bytes(p + 8), widen_bytes(p + 12)};
}

// 2^(byte − 127) of sixteen unsigned bytes up to 254, exactly; that of 0 is subnormal.
AETHER_INLINE Float4 power_of_two(const uint8_t* p) {
  UChar4 bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const UInt4 exponents = __builtin_convertvector(bytes, UInt4);
  return reinterpret_cast<Float4>(exponents > 0u ? exponents << 23u : UInt4{} + 0x00400000u);
}
AETHER_INLINE Vec load_powers_of_two(const uint8_t* p) {
  return {power_of_two(p), power_of_two(p + 4), power_of_two(p + 8), power_of_two(p + 12)};
}
AETHER_INLINE Float4 bit_field(UInt4 words, int shift, uint32_t mask) {
  return __builtin_convertvector(reinterpret_cast<Int4>((words >> static_cast<uint32_t>(shift)) & mask), Float4);
}
AETHER_INLINE Vec load_bit_fields(const char* words, int shift, uint32_t mask) {
  UInt4 w[4];
  std::memcpy(w, words, sizeof w);
  return {bit_field(w[0], shift, mask), bit_field(w[1], shift, mask), bit_field(w[2], shift, mask),
          bit_field(w[3], shift, mask)};
}

AETHER_INLINE float first_lane(const Vec& v) { return v.a[0]; }
AETHER_INLINE float reduce_add(const Vec& v) {
  const Float4 s = (v.a + v.b) + (v.c + v.d);
  return (s[0] + s[1]) + (s[2] + s[3]);
}
AETHER_INLINE double reduce_add_double(const Vec& v) {
  double sum = 0.0;
  float lanes[kLanes];
  store(lanes, v);
  for (float lane : lanes) sum += lane;
  return sum;
}
AETHER_INLINE float reduce_max(const Vec& v) {
  float lanes[kLanes];
  store(lanes, v);
  float best = lanes[0];
  for (float lane : lanes) best = lane > best ? lane : best;
  return best;
}

AETHER_INLINE uint32_t mask_of(Int4 a, Int4 b, Int4 c, Int4 d) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    mask |= static_cast<uint32_t>(a[i] & 1) << i | static_cast<uint32_t>(b[i] & 1) << (4 + i) |
            static_cast<uint32_t>(c[i] & 1) << (8 + i) | static_cast<uint32_t>(d[i] & 1) << (12 + i);
  }
  return mask;
}
AETHER_INLINE uint32_t greater_mask(const Vec& x, const Vec& y) {
  return mask_of(x.a > y.a, x.b > y.b, x.c > y.c, x.d > y.d);
}
AETHER_INLINE uint32_t greater_equal_mask(const Vec& x, const Vec& y) {
  return mask_of(x.a >= y.a, x.b >= y.b, x.c >= y.c, x.d >= y.d);
}

// p · 2^n for integral n; subnormal results flush to zero.
AETHER_INLINE Vec scale_by_power_of_two(const Vec& p, const Vec& n) {
  return map(p, n, [](Float4 value, Float4 exponent) {
    // 2^128 has no float, so the last doubling is a multiplication of its own.
    const Int4 biased = __builtin_convertvector(exponent, Int4) + 126;
    const Float4 scale = reinterpret_cast<Float4>((biased > 0 ? biased : Int4{}) << 23);
    return value * scale * 2.0f;
  });
}
AETHER_INLINE Vec round_to_integer(const Vec& x) {
  const Vec magic = set1(12582912.0f);  // 1.5 · 2^23: the sum has no fraction bits
  return (x + magic) - magic;
}

// out[word][row] for sixteen rows of up to 64 bytes; bytes past `bytes` read as zero.
AETHER_INLINE void transpose_words(const char* const (&rows)[16], size_t bytes, int64_t num_words, char* out) {
  for (int i = 0; i < 16; ++i) {
    uint32_t words[16] = {};
    std::memcpy(words, rows[i], bytes);
    for (int64_t w = 0; w < num_words; ++w) std::memcpy(out + w * 64 + i * 4, &words[w], 4);
  }
}

}  // namespace aether::cpu::AETHER_ISA

#include "simd/exp.h"
