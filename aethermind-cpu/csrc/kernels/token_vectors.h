// Copies of some of the vectors that every token has: select, concat and take_experts, of tensors [tokens, vectors, N].
// Copies of parts of vectors: slice_last and concat_last, of tensors of any shape.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Copies `source(t, i)`, the address of a vector of `size` values, to out[t][i].
template <class T, class SourceFn>
AETHER_INLINE void copy_vectors(const am_tensor& out, int64_t per_token, int64_t size, const am_team* team,
                                SourceFn source) {
  const Range tokens = share(team, out.shape[0]);
  T* target = data<T>(out) + tokens.begin * per_token * size;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    for (int64_t i = 0; i < per_token; ++i, target += size) {
      std::memcpy(target, source(t, i), static_cast<size_t>(size) * sizeof(T));
    }
  }
}

// out[t] = x[t][index].
template <class T>
void select(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t per_token = in[0].shape[1], size = in[0].shape[2];
  copy_vectors<T>(out[0], 1, size, team,
                  [&](int64_t t, int64_t) { return data<const T>(in[0]) + (t * per_token + attrs[0].i) * size; });
}

// out[t] = a[t], then b[t].
template <class T>
void concat(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t first = in[0].shape[1], second = in[1].shape[1], size = in[0].shape[2];
  copy_vectors<T>(out[0], first + second, size, team, [&](int64_t t, int64_t i) {
    return i < first ? data<const T>(in[0]) + (t * first + i) * size
                     : data<const T>(in[1]) + (t * second + i - first) * size;
  });
}

// out[t][i] = all[t][ids[t][first + i]].
template <class T>
void take_experts(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t num_experts = in[0].shape[1], size = in[0].shape[2], experts_per_token = in[1].shape[1];
  copy_vectors<T>(out[0], out[0].shape[1], size, team, [&](int64_t t, int64_t i) {
    return data<const T>(in[0]) +
           (t * num_experts + data<const int32_t>(in[1])[t * experts_per_token + attrs[0].i + i]) * size;
  });
}

// out[…] = x[…, begin : begin + size].
template <class T>
void slice_last(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t width = last_dim(in[0]), size = last_dim(out[0]);
  const Range rows = share(team, num_rows(out[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::memcpy(data<T>(out[0]) + r * size, data<const T>(in[0]) + r * width + attrs[0].i,
                static_cast<size_t>(size) * sizeof(T));
  }
}

// out[…] = a[…], then b[…].
template <class T>
void concat_last(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t first = last_dim(in[0]), second = last_dim(in[1]);
  const Range rows = share(team, num_rows(out[0]));
  T* target = data<T>(out[0]) + rows.begin * (first + second);
  for (int64_t r = rows.begin; r < rows.end; ++r, target += first + second) {
    std::memcpy(target, data<const T>(in[0]) + r * first, static_cast<size_t>(first) * sizeof(T));
    std::memcpy(target + first, data<const T>(in[1]) + r * second, static_cast<size_t>(second) * sizeof(T));
  }
}

}  // namespace aether::cpu::AETHER_ISA
