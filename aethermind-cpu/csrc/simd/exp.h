// The exponential of sixteen floats; included by each header of csrc/simd that defines Vec.
#pragma once

namespace aether::cpu::AETHER_ISA {

// exp(x) for -106 ≤ x ≤ 89.5, and NaN for NaN. Above 88.72 it is infinite. The polynomial is a minimax fit of
// (exp(r) - 1 - r) / r^2 on |r| ≤ ln(2) / 2, relative error 4e-9.
AETHER_INLINE Vec exp_of_clamped(const Vec& x) {
  const Vec n = round_to_integer(x * set1(1.44269504f));
  // ln 2 in two parts; n times the first is exact.
  Vec r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(0x1.6a23d0p-10f);
  p = fma(p, r, set1(0x1.123a20p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  return scale_by_power_of_two(fma(p, r * r, r) + set1(1.0f), n);
}

// exp(x) to within 1.5 units in the last place for -86.9 ≤ x ≤ 88.7. Below, it goes to zero (exactly zero under -105);
// above, and for NaN, it saturates near the greatest float.
AETHER_INLINE Vec exp(const Vec& x) { return exp_of_clamped(max(min(x, set1(88.72f)), set1(-106.0f))); }

// exp(x) that is infinite above and NaN for NaN: min and max return the second operand where either is NaN.
AETHER_INLINE Vec exp_or_infinity(const Vec& x) { return exp_of_clamped(max(set1(-106.0f), min(set1(89.5f), x))); }

AETHER_INLINE Vec silu(const Vec& x) { return x / (set1(1.0f) + exp(-x)); }

// silu whose result, or a product with it, is rounded to T.
template <class T>
AETHER_INLINE Vec silu_for(const Vec& x) {
  return silu(x);
}

}  // namespace aether::cpu::AETHER_ISA
