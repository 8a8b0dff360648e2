// Sums of rows at arbitrary addresses, weighted by a few rows of floats: a matrix product of few rows whose other
// operand is not packed.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

// Register tile: output rows (rows of p) × vectors of 16 columns.
inline constexpr int kWeightedRows = kTileRows >= 6 ? 6 : kTileRows;
inline constexpr int kWeightedVectors = kTileRows * kTilePanels >= 24 ? 4 : 1;

// out[r][16 P] = out[r] · factors[r] + Σ_j p[r][j] · values[j], for R rows and P vectors of columns from `column` on.
// With P = 1, only `lanes` columns of each row are read; with P > 1 all vectors are full.
template <class T, int R, int P>
__attribute__((noinline)) void accumulate_rows(const float* p, int64_t p_stride, const T* const* values, int64_t begin,
                                               int64_t end, int64_t column, int64_t lanes, const float* factors,
                                               float* out, int64_t out_stride) {
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
struct WeightedRowKernels {
  using Fn = void (*)(const float*, int64_t, const T* const*, int64_t, int64_t, int64_t, int64_t, const float*, float*,
                      int64_t);
  Fn multi_panel[kWeightedRows + 1] = {};
  Fn single_panel[kWeightedRows + 1] = {};

  template <int R>
  constexpr void fill() {
    multi_panel[R] = accumulate_rows<T, R, kWeightedVectors>;
    single_panel[R] = accumulate_rows<T, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr WeightedRowKernels() { fill<kWeightedRows>(); }
};
template <class T>
inline constexpr WeightedRowKernels<T> kWeightedRowKernels;

// The same for any number of rows and all `num_columns` columns; rows of `out` are padded to whole vectors.
template <class T>
AETHER_INLINE void accumulate_weighted_rows(const float* p, int64_t p_stride, int64_t num_rows, const T* const* values,
                                            int64_t begin, int64_t end, int64_t num_columns, const float* factors,
                                            float* out, int64_t out_stride) {
  for (int64_t column = 0; column < num_columns;) {
    const bool is_wide = kWeightedVectors > 1 && num_columns - column >= kWeightedVectors * kLanes;
    const int64_t lanes = smaller(num_columns - column, kLanes);
    for (int64_t r = 0; r < num_rows; r += kWeightedRows) {
      const int64_t rows = smaller(num_rows - r, kWeightedRows);
      const auto multiply =
          is_wide ? kWeightedRowKernels<T>.multi_panel[rows] : kWeightedRowKernels<T>.single_panel[rows];
      multiply(p + r * p_stride, p_stride, values, begin, end, column, lanes, factors + r,
               out + r * out_stride + column, out_stride);
    }
    column += is_wide ? kWeightedVectors * kLanes : kLanes;
  }
}

}  // namespace aether::cpu::AETHER_ISA
