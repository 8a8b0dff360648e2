// [..., T, H, C] to [..., H, T, C].
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void permute_heads(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int32_t ndim = in[0].ndim;
  const int64_t tokens = in[0].shape[ndim - 3], heads = in[0].shape[ndim - 2], size = in[0].shape[ndim - 1];
  const Range rows = share(team, num_rows(out[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t matrix = r / (tokens * heads), head = r / tokens % heads, token = r % tokens;
    std::memcpy(data<T>(out[0]) + r * size, data<const T>(in[0]) + ((matrix * tokens + token) * heads + head) * size,
                static_cast<size_t>(size) * sizeof(T));
  }
}

}  // namespace aether::cpu::AETHER_ISA
