// Arithmetic and bit functions of CUDA. Fast approximations are computed exactly; a GPU's are worse.
#pragma once

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

// CUDA takes mixed signs by converting to unsigned, as the usual arithmetic conversions do.
inline unsigned min(unsigned a, int b) { return a < static_cast<unsigned>(b) ? a : static_cast<unsigned>(b); }
inline unsigned min(int a, unsigned b) { return min(b, a); }
inline unsigned max(unsigned a, int b) { return a > static_cast<unsigned>(b) ? a : static_cast<unsigned>(b); }
inline unsigned max(int a, unsigned b) { return max(b, a); }

inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float *sine, float *cosine) { *sine = sinf(x), *cosine = cosf(x); }
inline void sincospif(float x, float *sine, float *cosine) {
    *sine = static_cast<float>(sin(x * 3.14159265358979323846)), *cosine = static_cast<float>(cos(x * 3.14159265358979323846));
}
inline float exp10f(float x, int) { return powf(10.0f, x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline float __saturatef(float x) { return !(x > 0.0f) ? 0.0f : x > 1.0f ? 1.0f : x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

inline int __float_as_int(float x) { return aether::emulation::bits_of<int>(x); }
inline unsigned __float_as_uint(float x) { return aether::emulation::bits_of<unsigned>(x); }
inline float __int_as_float(int x) { return aether::emulation::bits_of<float>(x); }
inline float __uint_as_float(unsigned x) { return aether::emulation::bits_of<float>(x); }
inline long long __double_as_longlong(double x) { return aether::emulation::bits_of<long long>(x); }
inline double __longlong_as_double(long long x) { return aether::emulation::bits_of<double>(x); }

// Conversions to integers saturate on a GPU, and turn NaN into zero.
namespace aether::emulation {
template <class Integer>
inline Integer saturate(double x) {
    if (x != x) return 0;
    const auto low = static_cast<double>(std::numeric_limits<Integer>::min());
    const auto high = static_cast<double>(std::numeric_limits<Integer>::max());
    return x <= low    ? std::numeric_limits<Integer>::min()
           : x >= high ? std::numeric_limits<Integer>::max()
                       : static_cast<Integer>(x);
}
}  // namespace aether::emulation
inline int __float2int_rn(float x) { return aether::emulation::saturate<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return aether::emulation::saturate<int>(std::trunc(x)); }
inline int __float2int_rd(float x) { return aether::emulation::saturate<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return aether::emulation::saturate<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return aether::emulation::saturate<unsigned>(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return aether::emulation::saturate<unsigned>(std::trunc(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
    return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned chosen = selector >> 4 * i & 15;
        unsigned byte = bytes >> 8 * (chosen & 7) & 255;
        if (chosen & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}
