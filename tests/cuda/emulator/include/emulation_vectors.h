// CUDA's vector types, with its alignments: a load through a pointer that lacks them is an error, as on a GPU.
#pragma once

#define AETHER_VECTORS(base, type, align2, align4)                                                   \
    struct base##1 {                                                                                 \
        type x;                                                                                      \
    };                                                                                               \
    struct alignas(align2) base##2 {                                                                 \
        type x, y;                                                                                   \
    };                                                                                               \
    struct base##3 {                                                                                 \
        type x, y, z;                                                                                \
    };                                                                                               \
    struct alignas(align4) base##4 {                                                                 \
        type x, y, z, w;                                                                             \
    };                                                                                               \
    inline base##2 make_##base##2(type x, type y) { return {x, y}; }                                 \
    inline base##3 make_##base##3(type x, type y, type z) { return {x, y, z}; }                      \
    inline base##4 make_##base##4(type x, type y, type z, type w) { return {x, y, z, w}; }

struct uint1 {
    unsigned x;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

AETHER_VECTORS(char, signed char, 2, 4)
AETHER_VECTORS(uchar, unsigned char, 2, 4)
AETHER_VECTORS(short, short, 4, 8)
AETHER_VECTORS(ushort, unsigned short, 4, 8)
AETHER_VECTORS(int, int, 8, 16)
AETHER_VECTORS(float, float, 8, 16)
AETHER_VECTORS(longlong, long long, 16, 16)
AETHER_VECTORS(ulonglong, unsigned long long, 16, 16)
AETHER_VECTORS(double, double, 16, 16)

#undef AETHER_VECTORS
