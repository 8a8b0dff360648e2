// The natural logarithm, element by element.
#pragma once

#include "kernels/elementwise.h"

namespace aether::cpu::AETHER_ISA {

// Lanes that integer arithmetic reaches; the compiler splits them into the registers there are.
using FloatLanes [[gnu::vector_size(4 * kLanes)]] = float;
using IntLanes [[gnu::vector_size(4 * kLanes)]] = int32_t;
using BitLanes [[gnu::vector_size(4 * kLanes)]] = uint32_t;

// Within 1 unit in the last place. x = 2^e · (1 + f) with √½ ≤ 1 + f < √2; the polynomial is a minimax fit of
// (log(1 + f) - f + f^2 / 2) / f^3 there, 7e-9 of the result.
AETHER_INLINE Vec log_of(const Vec& value) {
  constexpr uint32_t kRootOfHalf = 0x3f3504f3, kOne = 0x3f800000;
  FloatLanes x;
  std::memcpy(&x, &value, sizeof x);
  const IntLanes is_subnormal = x < 0x1p-126f;
  const FloatLanes normal = is_subnormal ? x * 0x1p23f : x;
  // Adding the distance from √½ to one makes the exponent field change at √½ instead of at powers of two.
  const BitLanes bits = reinterpret_cast<BitLanes>(normal) + (kOne - kRootOfHalf);
  const FloatLanes exponent =
      __builtin_convertvector(reinterpret_cast<IntLanes>(bits >> 23) - 127 + is_subnormal * 23, FloatLanes);
  const FloatLanes f = reinterpret_cast<FloatLanes>((bits & 0x007fffff) + kRootOfHalf) - 1.0f;
  FloatLanes p = f * -0x1.404c90p-4f + 0x1.07acfcp-3f;
  p = p * f - 0x1.0d1eeap-3f;
  p = p * f + 0x1.227682p-3f;
  p = p * f - 0x1.5472bcp-3f;
  p = p * f + 0x1.99a51ap-3f;
  p = p * f - 0x1.000236p-2f;
  p = p * f + 0x1.55554ap-2f;
  // ln 2 in two parts; the exponent times the first is exact.
  const FloatLanes square = f * f;
  const FloatLanes low = exponent * -2.12194440e-4f + square * f * p - 0.5f * square;
  const FloatLanes result = exponent * 0.693359375f + (low + f);
  const FloatLanes infinity = FloatLanes{} + __builtin_inff(), nan = FloatLanes{} + __builtin_nanf("");
  const FloatLanes at_edges = x == 0.0f ? -infinity : x == infinity ? infinity : nan;
  const FloatLanes all = (x > 0.0f) & (x < infinity) ? result : at_edges;
  Vec out;
  std::memcpy(&out, &all, sizeof out);
  return out;
}

template <class T>
void log(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team, [](const Vec& x) { return log_of(x); });
}

}  // namespace aether::cpu::AETHER_ISA
