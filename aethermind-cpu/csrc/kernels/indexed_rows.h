// Rows of a matrix by index: gather_rows, scatter_rows, and the embedding tables.
#pragma once

#include <cstring>

#include "kernels/pack.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// out[r] = source[indices[r]].
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

// x with some rows replaced. A worker copies its share of the rows and then replaces those within it, without a
// barrier.
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

template <class T>
void embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T>(in[1], in[0], out[0], team);
}

template <class T>
void position_embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T, int64_t>(in[1], in[0], out[0], team);
}

// Strides within a panel (pack.h), in elements: from one column to the next, and within a step from one element of K to
// the next.
template <class T>
struct PanelOrder {
  static constexpr int64_t kPerStep = 4 / sizeof(T), kColumn = kPerStep, kElement = 1;
};
template <>
struct PanelOrder<Float16> {
  static constexpr int64_t kPerStep = 2, kColumn = 1, kElement = kPanelColumns;
};

// embedding out of the packed weight of a tied lm_head.
template <class T>
void packed_embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  using Order = PanelOrder<T>;
  constexpr int64_t kStep = kStepBytes / static_cast<int64_t>(sizeof(T));
  const int64_t size = in[1].shape[1], panel_size = ceil_div(size, Order::kPerStep) * kStep;
  const int32_t* token = data<const int32_t>(in[0]);
  const Range rows = share(team, in[0].shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* column =
        data<const T>(in[1]) + token[r] / kPanelColumns * panel_size + token[r] % kPanelColumns * Order::kColumn;
    T* row = data<T>(out[0]) + r * size;
    for (int64_t k = 0; k < size; ++k)
      row[k] = column[k / Order::kPerStep * kStep + k % Order::kPerStep * Order::kElement];
  }
}

}  // namespace aether::cpu::AETHER_ISA
