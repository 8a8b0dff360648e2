// x with some of its rows replaced by others.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// A worker copies its share of the rows and then replaces those that lie in it, so workers never wait for each other.
template <class T>
void scatter_rows(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t size = last_dim(in[0]);
  const T* values = data<const T>(in[1]);
  const int32_t* index = data<const int32_t>(in[2]);
  const int64_t num_replaced = in[2].shape[0];
  const size_t row_bytes = static_cast<size_t>(size) * sizeof(T);
  T* target = data<T>(out[0]);
  const Range rows = share(team, num_rows(in[0]));
  if (rows.begin >= rows.end) return;
  std::memcpy(target + rows.begin * size, data<const T>(in[0]) + rows.begin * size,
              static_cast<size_t>(rows.end - rows.begin) * row_bytes);
  for (int64_t e = 0; e < num_replaced; ++e) {
    if (index[e] >= rows.begin && index[e] < rows.end)
      std::memcpy(target + index[e] * size, values + e * size, row_bytes);
  }
}

}  // namespace aether::cpu::AETHER_ISA
