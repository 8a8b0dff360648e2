// Products with stacks of weights: moe_gate_up_silu and moe_linear of a mixture of experts, and linear_per_head.
//
// The weights of E experts are one stack [E · N, K], expert after expert. Rows of the product are the
// token-expert pairs, sorted by expert: a grouped GEMM, which reads the weights of chosen experts only.
#pragma once

#include "kernels/activations.h"
#include "kernels/dense_weight.h"

namespace aether::cpu::AETHER_ISA {

// Sizes of an operator whose ids [T, A] choose among the experts of a stack, and the panels of each expert. If N is
// not a multiple of 16, the first and the last panel of an expert may also contain columns of its neighbours.
struct ExpertStack {
  int64_t num_experts, num_pairs, experts_per_token, n;
  int64_t num_items;   // panels of an expert, at most
  int64_t last_panel;  // of the stack

  ExpertStack(int64_t num_pairs, int64_t experts_per_token, const am_tensor& weight, const am_attr& experts)
      : num_experts(experts.i),
        num_pairs(num_pairs),
        experts_per_token(experts_per_token),
        n(weight.shape[0] / num_experts),
        num_items(n % kPanelColumns ? ceil_div(n + kPanelColumns - 1, kPanelColumns) : n / kPanelColumns),
        last_panel(larger(1, ceil_div(weight.shape[0], kPanelColumns)) - 1) {}

  int64_t panel(int64_t expert, int64_t item) const { return smaller(expert * n / kPanelColumns + item, last_panel); }

  // Calls `store_columns(j, column, lanes)` for the columns of a block of items: the block's column j is column
  // `column` of the expert, and so on for up to kLanes `lanes`.
  template <class F>
  AETHER_INLINE void for_each_column(int64_t expert, int64_t item_begin, int64_t num_items, F store_columns) const {
    const int64_t offset = (expert * n / kPanelColumns + item_begin) * kPanelColumns - expert * n;
    const int64_t end = smaller(num_items * kPanelColumns, n - offset);
    for (int64_t j = larger(0, -offset); j < end; j += kLanes) {
      store_columns(j, offset + j, smaller(kLanes, end - j));
    }
  }
};

// moe_gate_up_silu: out[t][a] = activation(x[t] · gateᵀ + b_gate, x[t] · upᵀ + b_up) of expert ids[t][a], rounded once.
// An item is a panel of gate and the same panel of up.
template <class T, class W = DenseWeight<T>>
void moe_gate_up_silu(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const ExpertStack stack(num_elements(in[1]), last_dim(in[1]), in[2], attrs[0]);
  const ClampedSiluMul activation(attrs + 1);
  const int64_t k = last_dim(in[0]), n = stack.n;
  const T* bias[2] = {data<const T>(in[4]), data<const T>(in[5])};
  const bool is_plain = activation.is_silu_mul() && !bias[0] && !bias[1];
  const W weights[2] = {W(in[2]), W(in[3])};
  const SortedRows pairs(data<const int32_t>(in[1]), stack.num_pairs, stack.num_experts, team->scratch);
  weights[0].for_each_grouped_block(
      pairs, stack.num_items, 2, team,
      static_cast<char*>(team->scratch) + SortedRows::bytes(stack.num_pairs, stack.num_experts),
      [&](int64_t position) { return data<const T>(in[0]) + pairs[position] / stack.experts_per_token * k; },
      [&](int64_t expert, int64_t item_begin, int64_t num_items, int64_t p) {
        return weights[p / num_items].panel(stack.panel(expert, item_begin + p % num_items));
      },
      [&](int64_t expert, int64_t row_begin, int64_t rows, int64_t item_begin, int64_t items, const float* c,
          int64_t stride) {
        for (int64_t r = 0; r < rows; ++r) {
          T* target = data<T>(out[0]) + pairs[row_begin + r] * n;
          const float* gates = c + r * stride;
          const float* ups = gates + items * kPanelColumns;
          if (is_plain) {
            stack.for_each_column(expert, item_begin, items, [&](int64_t j, int64_t column, int64_t lanes) {
              store(target + column, silu_for<T>(load(gates + j)) * load(ups + j), lanes);
            });
            continue;
          }
          stack.for_each_column(expert, item_begin, items, [&](int64_t j, int64_t column, int64_t lanes) {
            Vec gate = load(gates + j), up = load(ups + j);
            if (bias[0]) gate = gate + load(bias[0] + expert * n + column, lanes);
            if (bias[1]) up = up + load(bias[1] + expert * n + column, lanes);
            store(target + column, activation(gate, up), lanes);
          });
        }
      });
}

// out[pair] = x[pair] · wᵀ + bias of the pair's expert, for pairs sorted by expert. The GEMM's scratch memory follows
// the sorted order's in `team->scratch`.
template <class T, class W>
AETHER_INLINE void stacked_linear(const am_tensor& x, const am_tensor& w, const T* bias, const am_tensor& out,
                                  const ExpertStack& stack, const SortedRows& pairs, const am_team* team) {
  const int64_t k = last_dim(x), n = stack.n;
  const W weight(w);
  weight.for_each_grouped_block(
      pairs, stack.num_items, 1, team,
      static_cast<char*>(team->scratch) + SortedRows::bytes(stack.num_pairs, stack.num_experts),
      [&](int64_t position) { return data<const T>(x) + pairs[position] * k; },
      [&](int64_t expert, int64_t item_begin, int64_t, int64_t p) {
        return weight.panel(stack.panel(expert, item_begin + p));
      },
      [&](int64_t expert, int64_t row_begin, int64_t rows, int64_t item_begin, int64_t items, const float* c,
          int64_t stride) {
        for (int64_t r = 0; r < rows; ++r) {
          T* target = data<T>(out) + pairs[row_begin + r] * n;
          const float* sums = c + r * stride;
          stack.for_each_column(expert, item_begin, items, [&](int64_t j, int64_t column, int64_t lanes) {
            Vec value = load(sums + j);
            if (bias) value = value + load(bias + expert * n + column, lanes);
            store(target + column, value, lanes);
          });
        }
      });
}

// moe_linear: out[t][a] = x[t][a] · wᵀ + bias of expert ids[t][a].
template <class T, class W = DenseWeight<T>>
void moe_linear(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const ExpertStack stack(num_elements(in[1]), last_dim(in[1]), in[2], attrs[0]);
  const SortedRows pairs(data<const int32_t>(in[1]), stack.num_pairs, stack.num_experts, team->scratch);
  stacked_linear<T, W>(in[0], in[2], data<const T>(in[3]), out[0], stack, pairs, team);
}

// linear_per_head: out[t][h] = x[t][h] · wᵀ with the weights of head h.
template <class T, class W = DenseWeight<T>>
void linear_per_head(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t num_heads = in[0].shape[1], num_rows = in[0].shape[0] * num_heads;
  const ExpertStack stack(num_rows, num_heads, in[1], attrs[0]);
  const SortedRows rows = SortedRows::interleaved(num_rows, num_heads, team->scratch);
  stacked_linear<T, W>(in[0], in[1], nullptr, out[0], stack, rows, team);
}

template <class W>
size_t linear_per_head_scratch(const am_tensor* in, const am_tensor*, const am_attr* attrs, int32_t) {
  const int64_t num_rows = in[0].shape[0] * in[0].shape[1], num_heads = attrs[0].i;
  return SortedRows::bytes(num_rows, num_heads) + W::grouped_scratch_bytes(num_rows, num_heads, in[1].shape[1], 1);
}

template <class W, int kPanelsPerItem>
size_t moe_scratch(const am_tensor* in, const am_tensor*, const am_attr* attrs, int32_t) {
  const int64_t num_pairs = num_elements(in[1]), num_experts = attrs[0].i;
  return SortedRows::bytes(num_pairs, num_experts) +
         W::grouped_scratch_bytes(num_pairs, num_experts, in[2].shape[1], kPanelsPerItem);
}

}  // namespace aether::cpu::AETHER_ISA
