// The quotient of two tensors, element by element.
#pragma once

#include "kernels/elementwise.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void div(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], in[1], out[0], team, [](const Vec& x, const Vec& y) { return x / y; });
}

}  // namespace aether::cpu::AETHER_ISA
