// Sums of rows that lie anywhere, weighted by a few rows of floats: what a matrix product of few rows is.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

// Register blocking of weights × values: rows × vectors of 16 head dims.
inline constexpr int kValueRows = kTileRows >= 6 ? 6 : kTileRows;
inline constexpr int kValueVectors = kTileRows * kTilePanels >= 24 ? 4 : 1;

// out[r][16 P] = out[r] * factors[r] + sum over j of p[r][j] * values[j], for R rows and P vectors that start `column`
// elements into a value. The last vector has `lanes` lanes when P is 1.
template <class T, int R, int P>
__attribute__((noinline)) void add_values(const float* p, int64_t p_stride, const T* const* values, int64_t begin,
                                          int64_t end, int64_t column, int64_t lanes, const float* factors, float* out,
                                          int64_t out_stride) {
  Vec sums[R][P];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const Vec factor = set1(factors[r]);
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i) sums[r][i] = load(out + r * out_stride + i * kLanes) * factor;
  }
  for (int64_t j = begin; j < end; ++j) {
    const T* value = values[j] + column;
    Vec columns[P];
    if constexpr (P == 1) {
      columns[0] = load(value, lanes);
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) columns[i] = load(value + i * kLanes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Vec weight = set1(p[r * p_stride + j]);
#pragma GCC unroll 4
      for (int i = 0; i < P; ++i) sums[r][i] = fma(weight, columns[i], sums[r][i]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < P; ++i) store(out + r * out_stride + i * kLanes, sums[r][i]);
  }
}

template <class T>
struct ValueKernels {
  using Fn = void (*)(const float*, int64_t, const T* const*, int64_t, int64_t, int64_t, int64_t, const float*, float*,
                      int64_t);
  Fn several[kValueRows + 1] = {};
  Fn single[kValueRows + 1] = {};

  template <int R>
  constexpr void fill() {
    several[R] = add_values<T, R, kValueVectors>;
    single[R] = add_values<T, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr ValueKernels() { fill<kValueRows>(); }
};
template <class T>
inline constexpr ValueKernels<T> kValueKernels;

// The same for any number of rows and all of head_dim; rows of `out` are padded to whole vectors.
template <class T>
AETHER_INLINE void add_weighted_values(const float* p, int64_t p_stride, int64_t num_rows, const T* const* values,
                                       int64_t begin, int64_t end, int64_t head_dim, const float* factors, float* out,
                                       int64_t out_stride) {
  for (int64_t column = 0; column < head_dim;) {
    const bool is_wide = kValueVectors > 1 && head_dim - column >= kValueVectors * kLanes;
    const int64_t lanes = smaller(head_dim - column, kLanes);
    for (int64_t r = 0; r < num_rows; r += kValueRows) {
      const int64_t rows = smaller(num_rows - r, kValueRows);
      const auto multiply = is_wide ? kValueKernels<T>.several[rows] : kValueKernels<T>.single[rows];
      multiply(p + r * p_stride, p_stride, values, begin, end, column, lanes, factors + r,
               out + r * out_stride + column, out_stride);
    }
    column += is_wide ? kValueVectors * kLanes : kLanes;
  }
}

}  // namespace aether::cpu::AETHER_ISA
