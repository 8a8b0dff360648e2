// The exponential function, element by element.
#pragma once

#include "kernels/elementwise.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void exp(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team, [](const Vec& x) { return exp_or_infinity(x); });
}

}  // namespace aether::cpu::AETHER_ISA
