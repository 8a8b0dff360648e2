// Dynamic shared memory, and index checks that are compiled in under emulation or AETHER_CHECKED only.
#pragma once

#include "common/types.cuh"

// Declares `type name[]`, the dynamic shared memory of the block, at a multiple of 16 bytes.
#ifndef AETHER_EMULATED
#define AETHER_DYNAMIC_SHARED(type, name)                         \
  extern __shared__ __align__(16) unsigned char aether_shared_[]; \
  type* const name = reinterpret_cast<type*>(aether_shared_)
#endif

namespace aether {

// Returns `index`, which must be below `size`. Under emulation or AETHER_CHECKED an index out of range traps.
template <class Index, class Size>
__device__ __forceinline__ Index checked_index(Index index, [[maybe_unused]] Size size) {
#if defined(AETHER_EMULATED)
  emulation::check_index(static_cast<long long>(index), static_cast<long long>(size));
#elif defined(AETHER_CHECKED)
  if (index < 0 || index >= size) {
    __trap();
  }
#endif
  return index;
}

}  // namespace aether
