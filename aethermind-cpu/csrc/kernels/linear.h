// Products with packed weights: linear, lm_head, gate_up_silu, gate_up_gelu.
#pragma once

#include "kernels/activations.h"
#include "kernels/dense_weight.h"

namespace aether::cpu::AETHER_ISA {

// x · weightᵀ + bias. W is how the weight is stored (DenseWeight), O the type that the sums are rounded to; `bias` may
// be null.
template <class W, class T, class O>
AETHER_INLINE void multiply_packed(const am_tensor& x, const am_tensor& weight, const T* bias, const am_tensor& out,
                                   const am_team* team) {
  const int64_t n = weight.shape[0];
  const W panels(weight);
  panels.for_each_block(
      data<const T>(x), num_rows(x), ceil_div(n, kPanelColumns), 1, team,
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

// x · weightᵀ + bias in float32: linear without rounding of the output.
template <class T, class W = DenseWeight<T>>
void lm_head(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  multiply_packed<W, T, float>(in[0], in[1], data<const T>(in[2]), out[0], team);
}

// activation(x · w_gateᵀ) · (x · w_upᵀ), rounded once: an item is a panel of gate and the same panel of up.
template <class T, class W, class ActivationFn>
AETHER_INLINE void gate_up(const am_tensor* in, const am_tensor* out, const am_team* team, ActivationFn activation) {
  const int64_t n = in[1].shape[0];
  const W weights[2] = {W(in[1]), W(in[2])};
  weights[0].for_each_block(
      data<const T>(in[0]), num_rows(in[0]), ceil_div(n, kPanelColumns), 2, team,
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
            store(target + j, activation(gate) * up, smaller(columns - j, kLanes));
          }
        }
      });
}

template <class T, class W = DenseWeight<T>>
void gate_up_silu(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  gate_up<T, W>(in, out, team, [](const Vec& x) { return silu_for<T>(x); });
}

template <class T, class W = DenseWeight<T>>
void gate_up_gelu(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const bool is_approximate = attrs[0].i != 0;
  gate_up<T, W>(in, out, team, [&](const Vec& x) { return is_approximate ? approximate_gelu_of(x) : gelu_of(x); });
}

template <class T, class W = DenseWeight<T>>
size_t gate_up_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return W::scratch_bytes(num_rows(in[0]), in[1].shape[1], 2, num_workers);
}

}  // namespace aether::cpu::AETHER_ISA
