// x · weightᵀ + bias.
#pragma once

#include "kernels/gemm_blocks.h"

namespace aether::cpu::AETHER_ISA {

// `bias` may be null; O is what the sums are rounded to.
template <class T, class O>
AETHER_INLINE void multiply_packed(const am_tensor& x, const am_tensor& weight, const T* bias, const am_tensor& out,
                                   const am_team* team) {
  using E = Engine<T>;
  const int64_t n = weight.shape[0], k = weight.shape[1];
  const int64_t steps = divide_up(k, E::kStepK);
  const char* panels = data<const char>(weight);
  const Blocking cut(num_rows(x), k, steps, divide_up(n, kPanelColumns), 1, team->num_workers);
  for_each_block<E>(
      cut, data<const T>(x), team,
      [&](int64_t item_begin, int64_t, int64_t p) { return panels + (item_begin + p) * steps * kStepBytes; },
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

template <class T>
void linear(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  multiply_packed<T, T>(in[0], in[1], data<const T>(in[2]), out[0], team);
}

template <class T>
size_t linear_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  return block_scratch_bytes<Engine<T>>(num_rows(in[0]), in[1].shape[1], 1);
}

}  // namespace aether::cpu::AETHER_ISA
