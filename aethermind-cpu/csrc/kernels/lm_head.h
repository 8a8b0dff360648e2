// x · weightᵀ in float32: linear without the rounding of its output.
#pragma once

#include "kernels/linear.h"

namespace aether::cpu::AETHER_ISA {

template <class T, class W = DenseWeight<T>>
void lm_head(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  multiply_packed<W, T, float>(in[0], in[1], nullptr, out[0], team);
}

}  // namespace aether::cpu::AETHER_ISA
