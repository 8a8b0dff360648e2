// The CUDA language for a host compiler: kernels include this in place of CUDA's headers when AETHER_EMULATED is defined.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulation_runtime.h"

#define __CUDA_ARCH__ 800
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline)) inline
#define __constant__ static
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

// Threads of a block are fibers of one thread of the system, so what is local to that thread they share. The runtime
// finds all of it in the module's thread-local segment, and kernels keep nothing else there.
#define __shared__ thread_local

// The builder reads these two in a pass of its own.
#ifndef AETHER_LISTING
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#endif

extern thread_local unsigned char aether_dynamic_shared[];
#define AETHER_DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(aether_dynamic_shared)

// What runs in place of an instruction sees memory as the instruction does, and is not checked like a kernel's code.
#define AETHER_INSTRUCTION __attribute__((no_sanitize("thread", "undefined"), noinline)) inline

namespace aether::emulation {

inline void check_index(long long index, long long size) {
    if (index < 0 || index >= size) fail("index %lld is outside of %lld", index, size);
}

template <class To, class From>
inline To bits_of(const From &value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

}  // namespace aether::emulation

#include "emulation_vectors.h"

#include "emulation_math.h"

#include "emulation_halves.h"

#include "emulation_warp.h"

#include "emulation_tensor.h"
