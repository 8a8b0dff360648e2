// Access to the tensors of the kernel ABI (aethermind/kernel_abi.h).
#pragma once

#include <cstdint>

#include "aethermind/kernel_abi.h"
#include "kernels/registry.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
AETHER_INLINE T* data(const am_tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

AETHER_INLINE int64_t num_elements(const am_tensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) count *= tensor.shape[i];
  return count;
}

// A tensor as a matrix whose columns are its last dimension.
AETHER_INLINE int64_t last_dim(const am_tensor& tensor) { return tensor.shape[tensor.ndim - 1]; }
AETHER_INLINE int64_t num_rows(const am_tensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i + 1 < tensor.ndim; ++i) count *= tensor.shape[i];
  return count;
}

using RunFn = void (*)(const am_tensor*, const am_tensor*, const am_attr*, const am_team*);
using ScratchFn = size_t (*)(const am_tensor*, const am_tensor*, const am_attr*, int32_t);

constexpr am_kernel make_kernel(const char* name, uint32_t inputs, uint32_t outputs, uint32_t attrs, RunFn run,
                                ScratchFn scratch = nullptr) {
  return {AM_KERNEL_ABI_VERSION, inputs, outputs, attrs, name, run, scratch};
}

}  // namespace aether::cpu::AETHER_ISA
