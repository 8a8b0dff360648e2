// Rows of a table of embeddings: by token id, or by position. A table that is the head of the model as well may be read
// out of the head's packed weight (pack.h).
#pragma once

#include "kernels/gather_rows.h"
#include "kernels/pack.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T>(in[1], in[0], out[0], team);
}

template <class T>
void position_embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T, int64_t>(in[1], in[0], out[0], team);
}

// Where the elements of a column are in its panel: how far one column is from the next, and within a step one element
// from the next.
template <class T>
struct PanelOrder {
  static constexpr int64_t kPerStep = 4 / sizeof(T), kColumn = kPerStep, kElement = 1;
};
template <>
struct PanelOrder<Float16> {
  static constexpr int64_t kPerStep = 2, kColumn = 1, kElement = kPanelColumns;
};

template <class T>
void packed_embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  using Order = PanelOrder<T>;
  constexpr int64_t kStep = kStepBytes / static_cast<int64_t>(sizeof(T));
  const int64_t size = in[1].shape[1], panel_size = divide_up(size, Order::kPerStep) * kStep;
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
