// Nested loops over the dims of several tensors. Each tensor has its own strides.
#pragma once

#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Loops from the outermost to the innermost. Dims of 1 are skipped, and adjacent dims are joined if every tensor is
// contiguous over both. Strides are in elements; that of a dim over which a tensor is repeated is 0.
template <int kTensors>
struct Loops {
  int32_t count = 0;
  int64_t size[AM_MAX_DIMS] = {};
  int64_t stride[kTensors][AM_MAX_DIMS] = {};

  // Adds a loop inside of those so far.
  AETHER_INLINE void add(int64_t length, const int64_t (&strides)[kTensors]) {
    if (length == 1) return;
    bool is_joined = count > 0;
    for (int t = 0; t < kTensors; ++t) is_joined = is_joined && stride[t][count - 1] == strides[t] * length;
    if (!is_joined) ++count;
    size[count - 1] = is_joined ? size[count - 1] * length : length;
    for (int t = 0; t < kTensors; ++t) stride[t][count - 1] = strides[t];
  }

  AETHER_INLINE int64_t num_iterations() const {
    int64_t product = 1;
    for (int32_t d = 0; d < count; ++d) product *= size[d];
    return product;
  }

  // Removes the loop `d`, whose strides remain behind the others.
  AETHER_INLINE void remove(int32_t d) {
    for (; d + 1 < count; ++d) {
      size[d] = size[d + 1];
      for (int t = 0; t < kTensors; ++t) stride[t][d] = stride[t][d + 1];
    }
    --count;
  }
};

// A position in loops: `offset[t]` is the element of tensor t.
template <int kTensors>
struct Position {
  const Loops<kTensors>& loops;
  int64_t index[AM_MAX_DIMS] = {};
  int64_t offset[kTensors] = {};

  AETHER_INLINE Position(const Loops<kTensors>& all, int64_t iteration) : loops(all) {
    for (int32_t d = loops.count - 1; d >= 0; --d) {
      index[d] = iteration % loops.size[d];
      iteration /= loops.size[d];
      for (int t = 0; t < kTensors; ++t) offset[t] += index[d] * loops.stride[t][d];
    }
  }

  AETHER_INLINE void next() {
    for (int32_t d = loops.count - 1; d >= 0; --d) {
      for (int t = 0; t < kTensors; ++t) offset[t] += loops.stride[t][d];
      if (++index[d] < loops.size[d]) return;
      for (int t = 0; t < kTensors; ++t) offset[t] -= loops.stride[t][d] * loops.size[d];
      index[d] = 0;
    }
  }
};

// The strides of a row-major tensor.
AETHER_INLINE void strides_of(const am_tensor& tensor, int64_t (&strides)[AM_MAX_DIMS]) {
  int64_t stride = 1;
  for (int32_t d = tensor.ndim - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= tensor.shape[d];
  }
}

// The strides of a tensor seen in the shape of `out`: aligned at the last dims, and 0 where it is repeated.
AETHER_INLINE void strides_in(const am_tensor& tensor, const am_tensor& out, int64_t (&strides)[AM_MAX_DIMS]) {
  const int32_t num_new = out.ndim - tensor.ndim;
  int64_t stride = 1;
  for (int32_t d = out.ndim - 1; d >= 0; --d) {
    const int64_t size = d < num_new ? 1 : tensor.shape[d - num_new];
    strides[d] = size == 1 ? 0 : stride;
    stride *= size;
  }
}

}  // namespace aether::cpu::AETHER_ISA
