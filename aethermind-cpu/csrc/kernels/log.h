// The natural logarithm, element by element.
#pragma once

#include "kernels/elementwise.h"

namespace aether::cpu::AETHER_ISA {

// Within 1 unit in the last place. x = 2^e · (1 + f) with √½ ≤ 1 + f < √2; the polynomial is a minimax fit of
// (log(1 + f) - f + f^2 / 2) / f^3 there, 7e-9 of the result. Free of branches, so that compilers make vectors of it.
AETHER_INLINE float log_of(float x) {
  constexpr float kSmallestNormal = 0x1p-126f, kInfinity = __builtin_inff();
  const bool is_subnormal = x < kSmallestNormal;
  const float normal = is_subnormal ? x * 0x1p23f : x;
  // Adding the distance from √½ to one makes the exponent field change at √½ instead of at powers of two.
  const int32_t bits = __builtin_bit_cast(int32_t, normal) + (0x3f800000 - 0x3f3504f3);
  const float exponent = static_cast<float>((bits >> 23) - 127 - (is_subnormal ? 23 : 0));
  const float f = __builtin_bit_cast(float, (bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  float p = -0x1.404c90p-4f;
  p = p * f + 0x1.07acfcp-3f;
  p = p * f - 0x1.0d1eeap-3f;
  p = p * f + 0x1.227682p-3f;
  p = p * f - 0x1.5472bcp-3f;
  p = p * f + 0x1.99a51ap-3f;
  p = p * f - 0x1.000236p-2f;
  p = p * f + 0x1.55554ap-2f;
  // ln 2 in two parts; the exponent times the first is exact.
  const float square = f * f;
  const float low = exponent * -2.12194440e-4f + square * f * p - 0.5f * square;
  const float result = exponent * 0.693359375f + (low + f);
  const float at_edges = x == 0.0f ? -kInfinity : x == kInfinity ? kInfinity : __builtin_nanf("");
  return x > 0.0f && x < kInfinity ? result : at_edges;
}

template <class T>
void log(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team, [](const Vec& x) {
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < kLanes; ++i) lanes[i] = log_of(lanes[i]);
    return load(lanes);
  });
}

}  // namespace aether::cpu::AETHER_ISA
