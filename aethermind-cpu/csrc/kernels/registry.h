// The native kernels of this wheel, as one table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aethermind/kernel_abi.h"

namespace aether::cpu {

// A packed layout of a weight [rows, cols] of one dtype. Kernels that name the same entry share a packed copy.
// `destination` is 64-byte aligned and has packed_bytes(rows, cols) bytes.
struct PackEntry {
  const char* name;
  size_t (*packed_bytes)(int64_t rows, int64_t cols);
  void (*pack)(const void* source, int64_t rows, int64_t cols, void* destination);
};

struct KernelEntry {
  const char* operator_name;
  const char* variant;
  am_dtype dtype;  // the operator's type variable F
  int priority;    // the highest of those that the CPU supports is chosen
  bool (*is_supported_by_cpu)();
  const am_kernel* kernel;
  struct {
    int input;
    const PackEntry* pack;  // null for quantised weights (kernels/quantized_layout.h)
  } packs[4];
  int num_packs;
  bool multiplies_bytes = false;  // whether activations are quantised to int8
  bool is_batch_invariant = true;
};

std::span<const KernelEntry> kernel_table();

// Kernels of quantised weights, in any format.
std::span<const KernelEntry> quantized_kernel_table();

}  // namespace aether::cpu
