// x * rsqrt(mean(x^2) + eps) * weight over the last dimension.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// The factor that brings `row` to a root mean square of one.
template <class T>
AETHER_INLINE float inverse_rms(const T* row, int64_t size, float eps) {
  Vec even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const Vec x = load(row + i), y = load(row + i + kLanes);
    even = fma(x, x, even);
    odd = fma(y, y, odd);
  }
  for (; i < size; i += kLanes) {
    const int64_t n = smaller(size - i, kLanes);
    const Vec x = load(row + i, n);
    even = fma(x, x, even);
  }
  return 1.0f / __builtin_sqrtf(reduce_add(even + odd) / static_cast<float>(size) + eps);
}

template <class T, class W, class O>
AETHER_INLINE void scale_row(const T* row, const W* weight, int64_t size, float factor, O* out) {
  const Vec scale = set1(factor);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, load(row + i) * scale * load(weight + i));
  const int64_t n = size - i;
  if (n > 0) store(out + i, load(row + i, n) * scale * load(weight + i, n), n);
}

template <class T>
void rms_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const T* weight = data<const T>(in[1]);
  const int64_t size = last_dim(in[0]);
  const float eps = static_cast<float>(attrs[0].f);
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* row = data<const T>(in[0]) + r * size;
    scale_row(row, weight, size, inverse_rms(row, size, eps), data<T>(out[0]) + r * size);
  }
}

}  // namespace aether::cpu::AETHER_ISA
