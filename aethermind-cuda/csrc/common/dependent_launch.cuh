// Programmatic dependent launch (sm_90 and newer; CUDA C++ Programming Guide, 4.5): a kernel of a graph may begin while
// the blocks of the one before it still run. Every kernel calls `begin_kernel`, so that any may be launched that way.
#pragma once

#include "common/types.cuh"

namespace aether {

// Lets the dependent kernel launch once every block of this one has started. Its blocks occupy free multiprocessor
// resources and wait there.
__device__ __forceinline__ void launch_dependents() {
#if !defined(AETHER_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the preceding kernel has completed and its writes are visible. Before this call a kernel may only read
// weights and must not write. Every thread calls it, or a kernel could end before its predecessor.
__device__ __forceinline__ void wait_for_predecessor() {
#if !defined(AETHER_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The prologue of a kernel without work to do before the wait.
__device__ __forceinline__ void begin_kernel() {
  launch_dependents();
  wait_for_predecessor();
}

}  // namespace aether
