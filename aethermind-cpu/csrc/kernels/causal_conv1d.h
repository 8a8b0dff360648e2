// A depthwise convolution over the rows of each sequence and the J rows before them, which its state holds.
//
// A work item is a sequence by a block of channels, whose rows are computed in order.
#pragma once

#include "kernels/state_slots.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kConvChannelBlock = 16 * kLanes;

// One sequence's rows of `count` channels: x and out have rows of `stride`, as have w, bias and the state.
template <class T>
AETHER_INLINE void convolve(const T* x, const T* w, const T* bias, float* state, T* out, int64_t num_rows,
                            int64_t num_before, int64_t stride, int64_t count, bool is_new, bool has_silu) {
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t c = 0; c < count; c += kLanes) {
      const int64_t lanes = smaller(count - c, kLanes);
      Vec sum = bias ? load(bias + c, lanes) : zero();
      for (int64_t j = 0; j <= num_before; ++j) {
        const int64_t source = row + j - num_before;
        if (source < 0 && is_new) continue;
        const Vec value =
            source < 0 ? load(state + (row + j) * stride + c, lanes) : load(x + source * stride + c, lanes);
        sum = fma(load(w + j * stride + c, lanes), value, sum);
      }
      store(out + row * stride + c, has_silu ? silu(sum) : sum, lanes);
    }
  }
  // A row of the state is replaced by a later row, so in ascending order no row is read after it was written.
  for (int64_t j = 0; j < num_before; ++j) {
    const int64_t source = num_rows + j - num_before;
    for (int64_t c = 0; c < count; c += kLanes) {
      const int64_t lanes = smaller(count - c, kLanes);
      Vec value = zero();
      if (source >= 0) value = load(x + source * stride + c, lanes);
      if (source < 0 && !is_new) value = load(state + (num_rows + j) * stride + c, lanes);
      store(state + j * stride + c, value, lanes);
    }
  }
}

template <class T>
void causal_conv1d(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const StateSlots sequences(in + 4);
  const int64_t num_before = out[1].shape[1], num_channels = last_dim(in[0]);
  const int64_t num_blocks = ceil_div(num_channels, kConvChannelBlock);
  const T* bias = data<const T>(in[2]);
  for_each_claimed(team, sequences.num_sequences * num_blocks, [&](int64_t item) {
    const int64_t s = item / num_blocks, first = item % num_blocks * kConvChannelBlock;
    const Range rows = sequences.rows(s);
    if (rows.begin == rows.end) return;
    const int64_t offset = rows.begin * num_channels + first;
    float* state = data<float>(out[1]) + sequences.slots[s] * num_before * num_channels + first;
    convolve(data<const T>(in[0]) + offset, data<const T>(in[1]) + first, bias ? bias + first : nullptr, state,
             data<T>(out[0]) + offset, rows.end - rows.begin, num_before, num_channels,
             smaller(num_channels - first, kConvChannelBlock), sequences.is_new(s), attrs[0].i != 0);
  });
}

}  // namespace aether::cpu::AETHER_ISA
