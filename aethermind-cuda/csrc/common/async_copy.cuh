// Asynchronous copies from global to shared memory (cp.async, sm_80 and newer), in commit groups.
#pragma once

#include "common/types.cuh"

namespace aether {

// An address in shared memory. Kernels that step through a ring keep it, since a conversion takes instructions.
#ifdef AETHER_EMULATED
using SharedAddress = unsigned char*;
#else
using SharedAddress = uint32_t;
#endif

__device__ __forceinline__ SharedAddress shared_address(void* shared) {
#ifdef AETHER_EMULATED
  return static_cast<unsigned char*>(shared);
#else
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#endif
}

// 16 bytes, or 16 zero bytes where `is_present` is false: then `source` is not read. Both are aligned to 16 bytes.
__device__ __forceinline__ void copy_async_16(SharedAddress shared, const void* source, bool is_present) {
  const int num_bytes = is_present ? 16 : 0;
#ifdef AETHER_EMULATED
  emulation::copy_async(shared, source, 16, num_bytes);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(num_bytes) : "memory");
#endif
}

__device__ __forceinline__ void copy_async_16(void* shared, const void* source, bool is_present) {
  copy_async_16(shared_address(shared), source, is_present);
}

// Four bytes; both addresses are aligned to four.
__device__ __forceinline__ void copy_async_4(SharedAddress shared, const void* source) {
#ifdef AETHER_EMULATED
  emulation::copy_async(shared, source, 4, 4);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(source) : "memory");
#endif
}

// kBytes bytes (4, 8 or 16), or zeros where `is_present` is false: then `source` is not read. Both are aligned to
// kBytes.
template <int kBytes>
__device__ __forceinline__ void copy_async(SharedAddress shared, const void* source, bool is_present) {
  const int num_bytes = is_present ? kBytes : 0;
#ifdef AETHER_EMULATED
  emulation::copy_async(shared, source, kBytes, num_bytes);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(source), "n"(kBytes), "r"(num_bytes)
               : "memory");
#endif
}

template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* source, bool is_present) {
  copy_async<kBytes>(shared_address(shared), source, is_present);
}

// Closes the group of the copies issued since the last call.
__device__ __forceinline__ void commit_copies() {
#ifdef AETHER_EMULATED
  emulation::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `kPending` of this thread's groups are still in flight. Other threads see what was copied after
// a barrier.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#ifdef AETHER_EMULATED
  emulation::wait_for_copies(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace aether
