// The sum over the last dimension.
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void sum(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  reduce_rows<T>(in[0], out[0], team, [](const T* row, int64_t size) { return static_cast<float>(sum_of(row, size)); });
}

}  // namespace aether::cpu::AETHER_ISA
