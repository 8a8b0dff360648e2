// Softmax over the last dimension: exp(x - max(x)) / Σ exp(x - max(x)).
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

// Exponentials are computed twice: storing them in a 16-bit type would round twice.
template <class T>
void softmax(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t size = last_dim(in[0]);
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = data<const T>(in[0]) + r * size;
    T* target = data<T>(out[0]) + r * size;
    const Vec greatest = set1(max_of_row(x, size));
    const int64_t whole = size / kLanes * kLanes;
    double total = sum_lanes(whole, [&](int64_t i, int64_t) { return exp_or_infinity(load(x + i) - greatest); });
    for (int64_t i = whole; i < size; ++i) {
      total += static_cast<double>(first_lane(exp_or_infinity(load(x + i, 1) - greatest)));
    }
    const Vec factor = set1(static_cast<float>(1.0 / total));
    for (int64_t i = 0; i < whole; i += kLanes) store(target + i, exp_or_infinity(load(x + i) - greatest) * factor);
    const int64_t n = size - whole;
    if (n > 0) store(target + whole, exp_or_infinity(load(x + whole, n) - greatest) * factor, n);
  }
}

}  // namespace aether::cpu::AETHER_ISA
