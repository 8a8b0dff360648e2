// Copies of tiles of a matrix to shared memory by the tensor memory accelerator (sm_90 and newer; PTX ISA 9.7.9.27),
// which complete on a barrier in shared memory (mbarrier, 9.7.13.15).
#pragma once

#include "common/async_copy.cuh"
#include "common/types.cuh"

namespace aether {

// A kernel parameter: the CUtensorMap that the driver makes of `launch.TensorMap`. Tiles have rows of 64 elements of 16
// bits in the 128-byte swizzle (common/wgmma.cuh), and zeros outside of the matrix.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// A barrier in shared memory for threads that arrive and bytes that are copied. Phases alternate between 0 and 1.
struct CopyBarrier {
  uint64_t state;

  // By one thread, before `publish_barriers` and a barrier of the block.
  __device__ __forceinline__ void initialize(int num_arrivals) {
#ifdef AETHER_EMULATED
    emulation::initialize_copy_barrier(&state, num_arrivals);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)), "r"(num_arrivals) : "memory");
#endif
  }

  // Arrives, and adds bytes of copies that the phase waits for.
  __device__ __forceinline__ void arrive_and_expect(int num_bytes) {
#ifdef AETHER_EMULATED
    emulation::arrive_at_copy_barrier(&state, num_bytes);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(num_bytes)
                 : "memory");
#endif
  }

  __device__ __forceinline__ void arrive() {
#ifdef AETHER_EMULATED
    emulation::arrive_at_copy_barrier(&state, 0);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state)) : "memory");
#endif
  }

  // Waits until `phase` has ended.
  __device__ __forceinline__ void wait(int phase) {
#ifdef AETHER_EMULATED
    emulation::wait_at_copy_barrier(&state, phase != 0);
#else
    asm volatile(
        "{.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;}" ::"r"(shared_address(&state)),
        "r"(phase)
        : "memory");
#endif
  }
};

// Makes barriers that this thread initialised visible to copies.
__device__ __forceinline__ void publish_barriers() {
#ifndef AETHER_EMULATED
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
#ifndef AETHER_EMULATED
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// How the L2 cache treats what is copied: as what is read once, or as what should remain.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy = 0;
#ifndef AETHER_EMULATED
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy = 0;
#ifndef AETHER_EMULATED
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// Copies the tile whose first element is at (row, column) to a multiple of 1,024 bytes; its bytes, those outside of the
// matrix too, complete on `barrier`.
__device__ __forceinline__ void copy_tile(void* shared, const TensorMap& map, int row, int column, CopyBarrier& barrier,
                                          [[maybe_unused]] uint64_t policy) {
#ifdef AETHER_EMULATED
  emulation::copy_tile(shared, *reinterpret_cast<const emulation::TileMap*>(&map), row, column, &barrier.state);
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier.state)), "l"(policy)
      : "memory");
#endif
}

}  // namespace aether
