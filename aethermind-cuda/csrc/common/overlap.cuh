// Programmatic dependent launch (sm_90 and newer; CUDA C++ Programming Guide, 4.5): a kernel of a graph may begin while
// the blocks of the one before it still run. Every kernel calls `begin_kernel`, so that any may be launched that way.
#pragma once

#include "common/types.cuh"

namespace aether {

// The next kernel may be launched as soon as every block of this one is running. Its blocks take up what this one
// leaves of the multiprocessors, and wait there.
__device__ __forceinline__ void let_next_kernel_launch() {
#if !defined(AETHER_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and what it wrote can be read. Before this a kernel may read nothing but
// weights, and write nothing. Every thread calls it: a kernel without waiting threads could end before the one before.
__device__ __forceinline__ void wait_for_kernel_before() {
#if !defined(AETHER_EMULATED) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What a kernel begins with that has nothing to do before the wait.
__device__ __forceinline__ void begin_kernel() {
  let_next_kernel_launch();
  wait_for_kernel_before();
}

}  // namespace aether
