// The smallest element over the last dimension.
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void min(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  reduce_rows<T>(in[0], out[0], team,
                 [](const T* row, int64_t size) { return -greatest_of(row, size, [](const Vec& x) { return -x; }); });
}

}  // namespace aether::cpu::AETHER_ISA
