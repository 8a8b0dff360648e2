// Activation functions, element by element: clamp, gelu, relu, silu, softcap, and the gated sigmoid_mul, silu_mul and
// clamped_silu_mul.
#pragma once

#include "kernels/elementwise.h"

namespace aether::cpu::AETHER_ISA {

// gelu(x) = max(x, 0) - |x| · Φ(-|x|), and Φ(-t) = exp(-t^2 / 2) · R(t). R is fitted by a polynomial without constant
// term in 1 / (1 + t / 4), relative error 1.2e-6 for all t ≥ 0.
AETHER_INLINE Vec gelu_of(const Vec& x) {
  const Vec t = min(max(x, -x), set1(20.0f));  // beyond, the product is zero; infinities would give NaN
  const Vec u = set1(1.0f) / fma(t, set1(0.25f), set1(1.0f));
  Vec p = set1(-0x1.42670cp-5f);
  p = fma(p, u, set1(0x1.60c020p-4f));
  p = fma(p, u, set1(0x1.aab164p-8f));
  p = fma(p, u, set1(0x1.2eda0ap-4f));
  p = fma(p, u, set1(0x1.46dd80p-4f));
  p = fma(p, u, set1(0x1.7f00bep-4f));
  p = fma(p, u, set1(0x1.988b46p-4f));
  p = fma(p, u, set1(0x1.98842ep-4f));
  const Vec below = exp(t * t * set1(-0.5f)) * p * u;
  return max(zero(), x) - t * below;
}

// (1 + tanh(y)) / 2 is the sigmoid of 2 y.
AETHER_INLINE Vec approximate_gelu_of(const Vec& x) {
  const Vec cubic = fma(x * x * x, set1(0.044715f), x);
  return x / (set1(1.0f) + exp_or_infinity(cubic * set1(-1.5957691216f)));  // 2 √(2/π)
}

template <class T>
void gelu(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  if (attrs[0].i != 0) {
    map_elements<T>(in[0], out[0], team, [](const Vec& x) { return approximate_gelu_of(x); });
  } else {
    map_elements<T>(in[0], out[0], team, [](const Vec& x) { return gelu_of(x); });
  }
}

// max(x, 0).
template <class T>
void relu(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team,
                  [](const Vec& x) { return max(zero(), x); });  // this operand order propagates NaN
}

// x · sigmoid(x).
template <class T>
void silu(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team, [](const Vec& x) { return silu(x); });
}

// min(max(x, -limit), limit).
template <class T>
void clamp(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const float limit = static_cast<float>(attrs[0].f);
  map_elements<T>(in[0], out[0], team,
                  [&](const Vec& x) { return min(set1(limit), max(set1(-limit), x)); });  // NaN is propagated
}

// cap · tanh(x / cap).
template <class T>
void softcap(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const float cap = static_cast<float>(attrs[0].f);
  map_elements<T>(in[0], out[0], team, [&](const Vec& x) { return set1(cap) * tanh(x / set1(cap)); });
}

// sigmoid(gate) · x.
template <class T>
void sigmoid_mul(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], in[1], out[0], team,
                  [](const Vec& gate, const Vec& x) { return x / (set1(1.0f) + exp(-gate)); });
}

// silu(gate) · up.
template <class T>
void silu_mul(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], in[1], out[0], team, [](const Vec& x, const Vec& y) { return silu(x) * y; });
}

// The activation of gpt-oss: g · sigmoid(alpha · g) · (u + up_offset) of g = min(gate, limit) and u = up, clamped to
// ±limit. A limit of zero is none.
struct ClampedSiluMul {
  float alpha, limit, up_offset;

  // `attrs` are these three.
  explicit ClampedSiluMul(const am_attr* attrs)
      : alpha(static_cast<float>(attrs[0].f)),
        limit(attrs[1].f > 0.0 ? static_cast<float>(attrs[1].f) : __builtin_inff()),
        up_offset(static_cast<float>(attrs[2].f)) {}

  bool is_silu_mul() const { return alpha == 1.0f && limit == __builtin_inff() && up_offset == 0.0f; }

  // min and max return their second operand where either is NaN.
  AETHER_INLINE Vec operator()(const Vec& gate, const Vec& up) const {
    const Vec g = min(set1(limit), gate), u = max(set1(-limit), min(set1(limit), up));
    return g / (set1(1.0f) + exp(g * set1(-alpha))) * (u + set1(up_offset));
  }
};

template <class T>
void clamped_silu_mul(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  map_elements<T>(in[0], in[1], out[0], team, ClampedSiluMul(attrs));
}

}  // namespace aether::cpu::AETHER_ISA
