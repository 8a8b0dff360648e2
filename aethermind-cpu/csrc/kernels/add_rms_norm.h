// total = x + residual, rounded; out = rms_norm(total).
#pragma once

#include "kernels/rms_norm.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void add_rms_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const T* weight = data<const T>(in[2]);
  const int64_t size = last_dim(in[0]);
  const float eps = static_cast<float>(attrs[0].f);
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = data<const T>(in[0]) + r * size;
    const T* residual = data<const T>(in[1]) + r * size;
    T* total = data<T>(out[1]) + r * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(total + i, load(x + i) + load(residual + i));
    const int64_t n = size - i;
    if (n > 0) store(total + i, load(x + i, n) + load(residual + i, n), n);
    scale_row(total, weight, size, inverse_rms(total, size, eps), data<T>(out[0]) + r * size);
  }
}

}  // namespace aether::cpu::AETHER_ISA
