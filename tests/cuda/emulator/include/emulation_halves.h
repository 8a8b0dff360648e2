// __half and __nv_bfloat16 with their pairs. Arithmetic is in float32 and rounded once, to nearest even, as on a GPU.
#pragma once

namespace aether::emulation {

inline uint16_t bfloat16_bits(float x) {
    const auto bits = bits_of<uint32_t>(x);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat16_value(uint16_t bits) { return bits_of<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t float16_bits(float x) {
    const auto bits = bits_of<uint32_t>(x);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 2^16 and beyond
    if (magnitude < 0x38800000u) {                                               // below 2^-14: multiples of 2^-24
        const auto steps = static_cast<uint32_t>(std::nearbyint(bits_of<float>(magnitude) * 0x1p24f));
        return static_cast<uint16_t>(sign | steps);
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float float16_value(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
    if (exponent == 0) return bits_of<float>(bits_of<uint32_t>(fraction * 0x1p-24f) | sign);
    return bits_of<float>(sign | (exponent == 31 ? 255u << 23 : (exponent + 112u) << 23) | fraction << 13);
}

}  // namespace aether::emulation

#define AETHER_HALF(Type, Pair, Raw, to_bits, to_value)                                                   \
    struct Raw {                                                                                          \
        unsigned short x;                                                                                 \
    };                                                                                                    \
    struct Type {                                                                                         \
        uint16_t bits;                                                                                    \
        Type() = default;                                                                                 \
        Type(float x) : bits(aether::emulation::to_bits(x)) {}                                            \
        Type(double x) : Type(static_cast<float>(x)) {}                                                   \
        Type(int x) : Type(static_cast<float>(x)) {}                                                      \
        Type(Raw raw) : bits(raw.x) {}                                                                    \
        operator float() const { return aether::emulation::to_value(bits); }                              \
        operator Raw() const { return {bits}; }                                                           \
        Type &operator+=(Type other) { return *this = Type(float(*this) + float(other)); }                \
        Type &operator-=(Type other) { return *this = Type(float(*this) - float(other)); }                \
        Type &operator*=(Type other) { return *this = Type(float(*this) * float(other)); }                \
    };                                                                                                    \
    struct alignas(4) Pair {                                                                              \
        Type x, y;                                                                                        \
        Pair() = default;                                                                                 \
        Pair(Type x, Type y) : x(x), y(y) {}                                                              \
    };                                                                                                    \
    inline Type operator+(Type a, Type b) { return Type(float(a) + float(b)); }                           \
    inline Type operator-(Type a, Type b) { return Type(float(a) - float(b)); }                           \
    inline Type operator*(Type a, Type b) { return Type(float(a) * float(b)); }                           \
    inline Type operator/(Type a, Type b) { return Type(float(a) / float(b)); }                           \
    inline bool operator<(Type a, Type b) { return float(a) < float(b); }                                 \
    inline bool operator>(Type a, Type b) { return float(a) > float(b); }                                 \
    inline bool operator==(Type a, Type b) { return float(a) == float(b); }                               \
    inline Type __hadd(Type a, Type b) { return a + b; }                                                  \
    inline Type __hsub(Type a, Type b) { return a - b; }                                                  \
    inline Type __hmul(Type a, Type b) { return a * b; }                                                  \
    inline Type __hdiv(Type a, Type b) { return a / b; }                                                  \
    inline Type __hfma(Type a, Type b, Type c) { return Type(fmaf(float(a), float(b), float(c))); }       \
    inline Type __hneg(Type a) { return Type(-float(a)); }                                                \
    inline Type __habs(Type a) { return Type(fabsf(float(a))); }                                          \
    inline Type __hmax(Type a, Type b) { return Type(fmaxf(float(a), float(b))); }                        \
    inline Type __hmin(Type a, Type b) { return Type(fminf(float(a), float(b))); }                        \
    inline bool __hgt(Type a, Type b) { return a > b; }                                                   \
    inline bool __hlt(Type a, Type b) { return a < b; }                                                   \
    inline bool __hisnan(Type a) { return isnan(float(a)); }                                              \
    inline Pair __hadd2(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }                                \
    inline Pair __hsub2(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }                                \
    inline Pair __hmul2(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }                                \
    inline Pair __hfma2(Pair a, Pair b, Pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    inline Pair __hmax2(Pair a, Pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                  \
    inline float __low2float(Pair a) { return float(a.x); }                                               \
    inline float __high2float(Pair a) { return float(a.y); }

AETHER_HALF(__half, __half2, __half_raw, float16_bits, float16_value)
AETHER_HALF(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, bfloat16_bits, bfloat16_value)
#undef AETHER_HALF

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __half2float(__half x) { return float(x); }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }

inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16(__nv_bfloat16_raw{bits}); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
