// Thread block clusters (sm_90 and newer; PTX ISA 9.7.13): ranks, barriers, and loads from each other's shared memory.
#pragma once

#include "common/async_copy.cuh"
#include "common/types.cuh"

namespace aether {

// The index of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
#ifdef AETHER_EMULATED
  return emulation::cluster_rank();
#else
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#endif
}

// A barrier of all threads of a cluster, which orders their accesses to shared memory.
__device__ __forceinline__ void synchronize_cluster() {
#ifdef AETHER_EMULATED
  emulation::synchronize_cluster();
#else
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}

// Waits until all threads of the cluster have come, without ordering accesses to memory: before the end of a block
// whose shared memory others have read.
__device__ __forceinline__ void leave_cluster() {
#ifdef AETHER_EMULATED
  emulation::synchronize_cluster();
#else
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
#endif
}

// Four floats at `shared`, an address of this block's shared memory, in the block `rank` of the cluster.
__device__ __forceinline__ Vector<float32> load_from_rank(const float32* shared, int rank) {
  Vector<float32> result;
#ifdef AETHER_EMULATED
  emulation::read_of_rank(&result, shared, sizeof result, rank);
#else
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %4, %5;"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];}"
      : "=f"(result.values[0]), "=f"(result.values[1]), "=f"(result.values[2]), "=f"(result.values[3])
      : "r"(address), "r"(rank)
      : "memory");
#endif
  return result;
}

}  // namespace aether
