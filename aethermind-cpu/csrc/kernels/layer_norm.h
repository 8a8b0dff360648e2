// (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension.
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void layer_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const T* weight = data<const T>(in[1]);
  const T* bias = data<const T>(in[2]);
  const int64_t size = last_dim(in[0]), whole = size / kLanes * kLanes, left = size - whole;
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = data<const T>(in[0]) + r * size;
    T* target = data<T>(out[0]) + r * size;
    const double mean = sum_of(x, size) / static_cast<double>(size);
    const Vec centre = set1(static_cast<float>(mean));
    double squares = sum_lanes(whole, [&](int64_t i, int64_t) {
      const Vec distance = load(x + i) - centre;
      return distance * distance;
    });
    for (int64_t i = whole; i < size; ++i) {
      const double distance = static_cast<double>(element(x + i)) - mean;
      squares += distance * distance;
    }
    const double variance = squares / static_cast<double>(size);
    const Vec factor = set1(static_cast<float>(1.0 / __builtin_sqrt(variance + attrs[0].f)));
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec value = (load(x + i) - centre) * factor * load(weight + i);
      store(target + i, bias ? value + load(bias + i) : value);
    }
    if (left > 0) {
      const Vec value = (load(x + whole, left) - centre) * factor * load(weight + whole, left);
      store(target + whole, bias ? value + load(bias + whole, left) : value, left);
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
