// The index of the largest element over the last dimension, the lowest one on ties.
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

// The first index whose element is not less than `value`; zero where there is none.
template <class T>
AETHER_INLINE int64_t first_not_less(const T* row, int64_t size, float value) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const uint32_t found = greater_equal_mask(load(row + i), set1(value));
    if (found) return i + __builtin_ctz(found);
  }
  for (; i < size; ++i) {
    if (element(row + i) >= value) return i;
  }
  return 0;
}

template <class T>
void argmax(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t size = last_dim(in[0]);
  const Range rows = share(team, num_rows(in[0]), kLanes);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* row = data<const T>(in[0]) + r * size;
    data<int32_t>(out[0])[r] = static_cast<int32_t>(first_not_less(row, size, greatest_of(row, size)));
  }
}

}  // namespace aether::cpu::AETHER_ISA
