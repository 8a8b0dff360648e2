// The exponential of sixteen floats; included by each header of csrc/simd that defines Vec.
#pragma once

namespace aether::cpu::AETHER_ISA {

// exp(r) - 1 and n, with exp(x) = 2^n · exp(r) and |r| ≤ ln(2) / 2. The polynomial is a minimax fit of
// (exp(r) - 1 - r) / r^2 there, relative error 4e-9.
AETHER_INLINE Vec expm1_of_remainder(const Vec& x, Vec& n) {
  n = round_to_integer(x * set1(1.44269504f));
  // ln 2 in two parts; n times the first is exact.
  Vec r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(0x1.6a23d0p-10f);
  p = fma(p, r, set1(0x1.123a20p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  return fma(p, r * r, r);
}

// exp(x) for -106 ≤ x ≤ 89.5, and NaN for NaN. Above 88.72 it is infinite.
AETHER_INLINE Vec exp_of_clamped(const Vec& x) {
  Vec n;
  const Vec r = expm1_of_remainder(x, n);
  return scale_by_power_of_two(r + set1(1.0f), n);
}

// exp(x) to within 1.5 units in the last place for -86.9 ≤ x ≤ 88.7. Below, it goes to zero (exactly zero under -105);
// above, and for NaN, it saturates near the greatest float.
AETHER_INLINE Vec exp(const Vec& x) { return exp_of_clamped(max(min(x, set1(88.72f)), set1(-106.0f))); }

// exp(x) that is infinite above and NaN for NaN: min and max return the second operand where either is NaN.
AETHER_INLINE Vec exp_or_infinity(const Vec& x) { return exp_of_clamped(max(set1(-106.0f), min(set1(89.5f), x))); }

// tanh(x) = (e^2x - 1) / (e^2x + 1), relative error 3e-7 also near zero, because e^2x - 1 is not computed from e^2x.
AETHER_INLINE Vec tanh(const Vec& x) {
  Vec n;
  const Vec twice = max(set1(-20.0f), min(set1(20.0f), x + x));  // this operand order propagates NaN
  const Vec r = expm1_of_remainder(twice, n);
  const Vec power = scale_by_power_of_two(set1(1.0f), n);
  const Vec expm1 = fma(r, power, power - set1(1.0f));
  return expm1 / (expm1 + set1(2.0f));
}

AETHER_INLINE Vec silu(const Vec& x) { return x / (set1(1.0f) + exp(-x)); }

// silu whose result, or a product with it, is rounded to T.
template <class T>
AETHER_INLINE Vec silu_for(const Vec& x) {
  return silu(x);
}

}  // namespace aether::cpu::AETHER_ISA
