// silu(x · w_gateᵀ) * (x · w_upᵀ), rounded once: a block takes the same columns of gate and up.
#pragma once

#include "kernels/gemm_blocks.h"

namespace aether::cpu::AETHER_ISA {

template <class T, class W = DenseWeight<T>>
void gate_up_silu(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t n = in[1].shape[0];
  const W weights[2] = {W(in[1]), W(in[2])};
  weights[0].for_each_block(
      data<const T>(in[0]), num_rows(in[0]), divide_up(n, kPanelColumns), 2, team,
      [&](int64_t item_begin, int64_t num_items, int64_t p) {
        return weights[p / num_items].panel(item_begin + p % num_items);
      },
      [&](int64_t row_begin, int64_t rows, int64_t item_begin, int64_t items, const float* c, int64_t stride) {
        const int64_t column_begin = item_begin * kPanelColumns;
        const int64_t columns = smaller(items * kPanelColumns, n - column_begin);
        for (int64_t r = 0; r < rows; ++r) {
          T* target = data<T>(out[0]) + (row_begin + r) * n + column_begin;
          const float* sums = c + r * stride;
          for (int64_t j = 0; j < columns; j += kLanes) {
            const Vec gate = load(sums + j), up = load(sums + items * kPanelColumns + j);
            store(target + j, silu_for<T>(gate) * up, smaller(columns - j, kLanes));
          }
        }
      });
}

template <class T, class W = DenseWeight<T>>
size_t gate_up_silu_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return W::scratch_bytes(num_rows(in[0]), in[1].shape[1], 2, num_workers);
}

}  // namespace aether::cpu::AETHER_ISA
