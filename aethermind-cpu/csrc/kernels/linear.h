// x · weightᵀ + bias.
#pragma once

#include "kernels/gemm_blocks.h"

namespace aether::cpu::AETHER_ISA {

// W says how the weight is stored. `bias` may be null; O is what the sums are rounded to.
template <class W, class T, class O>
AETHER_INLINE void multiply_packed(const am_tensor& x, const am_tensor& weight, const T* bias, const am_tensor& out,
                                   const am_team* team) {
  const int64_t n = weight.shape[0];
  const W panels(weight);
  panels.for_each_block(
      data<const T>(x), num_rows(x), divide_up(n, kPanelColumns), 1, team,
      [&](int64_t item_begin, int64_t, int64_t p) { return panels.panel(item_begin + p); },
      [&](int64_t row_begin, int64_t rows, int64_t item_begin, int64_t items, const float* c, int64_t stride) {
        const int64_t column_begin = item_begin * kPanelColumns;
        const int64_t columns = smaller(items * kPanelColumns, n - column_begin);
        for (int64_t r = 0; r < rows; ++r) {
          O* target = data<O>(out) + (row_begin + r) * n + column_begin;
          const float* sums = c + r * stride;
          for (int64_t j = 0; j < columns; j += kLanes) {
            const int64_t lanes = smaller(columns - j, kLanes);
            Vec value = load(sums + j);
            if (bias) value = value + load(bias + column_begin + j, lanes);
            store(target + j, value, lanes);
          }
        }
      });
}

template <class T, class W = DenseWeight<T>>
void linear(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  multiply_packed<W, T, T>(in[0], in[1], data<const T>(in[2]), out[0], team);
}

template <class T, class W = DenseWeight<T>>
size_t linear_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return W::scratch_bytes(num_rows(in[0]), in[1].shape[1], 1, num_workers);
}

}  // namespace aether::cpu::AETHER_ISA
