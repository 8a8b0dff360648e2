// The native kernels of this wheel, as one table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aethermind/kernel_abi.h"

namespace aether::cpu {

// A layout of a weight [rows, cols] of one element type. Two kernels that name the same entry share a packed copy.
// `destination` is 64-byte aligned and has packed_bytes(rows, cols) bytes.
struct PackEntry {
  const char* name;
  size_t (*packed_bytes)(int64_t rows, int64_t cols);
  void (*pack)(const void* source, int64_t rows, int64_t cols, void* destination);
};

struct KernelEntry {
  const char* operator_name;
  const char* variant;
  am_dtype dtype;  // what the operator's F stands for
  int priority;    // of several that the CPU supports, the highest is taken
  bool (*is_supported_by_cpu)();
  const am_kernel* kernel;
  struct {
    int input;
    const PackEntry* pack;  // null in kernels of quantised weights: kernels/quantized_layout.h
  } packs[4];
  int num_packs;
  bool multiplies_bytes = false;  // whether activations are quantised as well, so that the products are of bytes
};

std::span<const KernelEntry> kernel_table();

// Those whose weights are quantised, in any of the formats.
std::span<const KernelEntry> quantized_kernel_table();

}  // namespace aether::cpu
