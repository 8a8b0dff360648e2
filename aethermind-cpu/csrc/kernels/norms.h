// Normalisation over the last dimension: rms_norm, add_rms_norm, gated_rms_norm, layer_norm.
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

// Σ f(i, lanes)², where f returns the values of elements i … i + lanes - 1, zero-padded.
template <class F>
AETHER_INLINE float sum_of_squares(int64_t size, F f) {
  Vec even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const Vec x = f(i, kLanes), y = f(i + kLanes, kLanes);
    even = fma(x, x, even);
    odd = fma(y, y, odd);
  }
  for (; i < size; i += kLanes) {
    const Vec x = f(i, smaller(size - i, kLanes));
    even = fma(x, x, even);
  }
  return reduce_add(even + odd);
}

AETHER_INLINE float inverse_root(float sum, int64_t size, float eps) {
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(size) + eps);
}

// 1 / sqrt(mean(row²) + eps).
template <class T>
AETHER_INLINE float inverse_rms(const T* row, int64_t size, float eps) {
  const auto values = [row](int64_t i, int64_t lanes)
                          __attribute__((always_inline)) { return load_lanes(row + i, lanes); };
  return inverse_root(sum_of_squares(size, values), size, eps);
}

template <class T, class W, class O>
AETHER_INLINE void scale_row(const T* row, const W* weight, int64_t size, float factor, O* out) {
  const Vec scale = set1(factor);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, load(row + i) * scale * load(weight + i));
  const int64_t n = size - i;
  if (n > 0) store(out + i, load(row + i, n) * scale * load(weight + i, n), n);
}

// row · factor · (offset + weight); the sum is in float32.
template <class T, class W, class O>
AETHER_INLINE void scale_row(const T* row, const W* weight, int64_t size, float factor, float offset, O* out) {
  if (offset == 0.0f) return scale_row(row, weight, size, factor, out);
  const Vec scale = set1(factor), added = set1(offset);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, load(row + i) * scale * (load(weight + i) + added));
  const int64_t n = size - i;
  if (n > 0) store(out + i, load(row + i, n) * scale * (load(weight + i, n) + added), n);
}

template <class T>
void rms_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const T* weight = data<const T>(in[1]);
  const int64_t size = last_dim(in[0]);
  const float eps = static_cast<float>(attrs[0].f), offset = static_cast<float>(attrs[1].f);
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* row = data<const T>(in[0]) + r * size;
    scale_row(row, weight, size, inverse_rms(row, size, eps), offset, data<T>(out[0]) + r * size);
  }
}

// total = x + residual, rounded to T; out = rms_norm(total).
template <class T>
void add_rms_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const T* weight = data<const T>(in[2]);
  const int64_t size = last_dim(in[0]);
  const float eps = static_cast<float>(attrs[0].f), offset = static_cast<float>(attrs[1].f);
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = data<const T>(in[0]) + r * size;
    const T* residual = data<const T>(in[1]) + r * size;
    T* total = data<T>(out[1]) + r * size;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(total + i, load(x + i) + load(residual + i));
    const int64_t n = size - i;
    if (n > 0) store(total + i, load(x + i, n) + load(residual + i, n), n);
    scale_row(total, weight, size, inverse_rms(total, size, eps), offset, data<T>(out[0]) + r * size);
  }
}

// rms_norm(x · silu(gate)), or rms_norm(x) · silu(gate) with norm_before_gate; each of num_groups equal parts of a row
// has a mean of its own. The activation is computed twice rather than stored: it must not be rounded to T.
template <class T>
void gated_rms_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const float eps = static_cast<float>(attrs[0].f);
  const int64_t num_groups = attrs[1].i, size = last_dim(in[0]) / num_groups;
  const bool norm_before_gate = attrs[2].i != 0;
  const Range parts = share(team, num_rows(in[0]) * num_groups);
  for (int64_t p = parts.begin; p < parts.end; ++p) {
    const T *x = data<const T>(in[0]) + p * size, *gate = data<const T>(in[1]) + p * size;
    const T* weight = data<const T>(in[2]) + p % num_groups * size;
    T* target = data<T>(out[0]) + p * size;
    const auto gated = [x, gate](int64_t i, int64_t lanes) __attribute__((always_inline)) {
      return load_lanes(x + i, lanes) * silu(load_lanes(gate + i, lanes));
    };
    const float factor =
        norm_before_gate ? inverse_rms(x, size, eps) : inverse_root(sum_of_squares(size, gated), size, eps);
    for (int64_t i = 0; i < size; i += kLanes) {
      const int64_t lanes = smaller(size - i, kLanes);
      store(target + i, gated(i, lanes) * set1(factor) * load_lanes(weight + i, lanes), lanes);
    }
  }
}

// (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.
template <class T>
void layer_norm(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const T* weight = data<const T>(in[1]);
  const T* bias = data<const T>(in[2]);
  const int64_t size = last_dim(in[0]), tail_begin = size / kLanes * kLanes, tail_size = size - tail_begin;
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = data<const T>(in[0]) + r * size;
    T* target = data<T>(out[0]) + r * size;
    const double mean = sum_of(x, size) / static_cast<double>(size);
    const Vec centre = set1(static_cast<float>(mean));
    double squares = sum_lanes(tail_begin, [&](int64_t i, int64_t) {
      const Vec distance = load(x + i) - centre;
      return distance * distance;
    });
    for (int64_t i = tail_begin; i < size; ++i) {
      const double distance = static_cast<double>(element(x + i)) - mean;
      squares += distance * distance;
    }
    const double variance = squares / static_cast<double>(size);
    const Vec factor = set1(static_cast<float>(1.0 / __builtin_sqrt(variance + attrs[0].f)));
    for (int64_t i = 0; i < tail_begin; i += kLanes) {
      const Vec value = (load(x + i) - centre) * factor * load(weight + i);
      store(target + i, bias ? value + load(bias + i) : value);
    }
    if (tail_size > 0) {
      const Vec value = (load(x + tail_begin, tail_size) - centre) * factor * load(weight + tail_begin, tail_size);
      store(target + tail_begin, bias ? value + load(bias + tail_begin, tail_size) : value, tail_size);
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
