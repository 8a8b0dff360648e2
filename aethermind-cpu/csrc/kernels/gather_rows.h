// Rows of a matrix by index: gather_rows, embedding and position_embedding differ in the order of their inputs and in
// the type of the index.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

template <class T, class Index = int32_t>
AETHER_INLINE void copy_rows(const am_tensor& source, const am_tensor& indices, const am_tensor& out,
                             const am_team* team) {
  const int64_t size = source.shape[1];
  const Index* index = data<const Index>(indices);
  const Range rows = share(team, indices.shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::memcpy(data<T>(out) + r * size, data<const T>(source) + index[r] * size,
                static_cast<size_t>(size) * sizeof(T));
  }
}

template <class T>
void gather_rows(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T>(in[0], in[1], out[0], team);
}

}  // namespace aether::cpu::AETHER_ISA
