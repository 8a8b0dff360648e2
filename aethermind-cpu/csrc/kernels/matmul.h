// a · b over the last two dimensions, for every leading index.
//
// The tile kernels of gemm.h take b in panels of sixteen columns. A work item is up to kTuning.row_block rows of a by
// kMatmulPanels panels of b: it packs both into scratch, kMatmulBlockK of K at a time, which fit in the second-level
// cache together with the accumulators.
//
// With up to kDirectRows rows, packing b would cost more than the product. Rows of b are then read in place, weighted
// by elements of a: a work item is kDirectColumns columns of b.
#pragma once

#include "kernels/dense_weight.h"
#include "kernels/weighted_rows.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kMatmulPanels = 16;
inline constexpr int64_t kMatmulBlockK = 256;
inline constexpr int64_t kDirectRows = kWeightedRows;
inline constexpr int64_t kDirectColumns = 256;
// Only where both paths compute the same FMA chain, so that a row's result does not depend on the number of rows.
template <class T>
inline constexpr bool kIsDirect = sizeof(typename Microkernel<T>::Activation) == sizeof(float);

template <class T>
struct MatmulShape {
  using Micro = Microkernel<T>;
  int64_t rows, k, columns, row_block, row_blocks, panels, group, groups;

  MatmulShape(const am_tensor& a, const am_tensor& b)
      : rows(a.shape[a.ndim - 2]), k(last_dim(a)), columns(last_dim(b)), panels(ceil_div(columns, kPanelColumns)) {
    row_blocks = larger(1, ceil_div(rows, kTuning.row_block));
    row_block = round_up(ceil_div(rows, row_blocks), kTileRows);
    group = larger(1, smaller(panels, kMatmulPanels));
    groups = ceil_div(panels, group);
  }

  int64_t block_k() const { return smaller(k, kMatmulBlockK); }
  // Scratch must not shrink with more rows, so it is sized for the largest block, not for row_block.
  int64_t max_rows() const { return round_up(smaller(rows, kTuning.row_block), kTileRows); }
  int64_t tile_bytes() const { return max_rows() * ceil_div(block_k(), kLineK<Micro>) * kLineBytes; }
  int64_t panel_bytes() const { return ceil_div(block_k(), Micro::kStepK) * kStepBytes; }
  int64_t sum_bytes() const { return max_rows() * group * kPanelColumns * static_cast<int64_t>(sizeof(float)); }
  size_t bytes() const { return static_cast<size_t>(tile_bytes() + group * panel_bytes() + sum_bytes()); }
};

// Packs sixteen columns of a row-major matrix into a panel (pack.h); absent columns, and the row past an odd number,
// are zero.
template <class T>
AETHER_INLINE void pack_columns(const T* b, int64_t stride, int64_t num_rows, int64_t num_columns, char* panel) {
  constexpr int64_t kPerWord = kStepBytes / kPanelColumns / static_cast<int64_t>(sizeof(T));
  for (int64_t r = 0; r < num_rows; r += kPerWord, panel += kStepBytes) {
    T rows[kPerWord][kPanelColumns] = {};
    for (int64_t i = 0; i < smaller(num_rows - r, kPerWord); ++i) {
      if (num_columns == kPanelColumns) {
        std::memcpy(rows[i], b + (r + i) * stride, sizeof rows[i]);
      } else {
        std::memcpy(rows[i], b + (r + i) * stride, static_cast<size_t>(num_columns) * sizeof(T));
      }
    }
    if constexpr (!__is_same(T, BFloat16)) {  // float32 and float16 panels are row by row
      std::memcpy(panel, rows, sizeof rows);
      continue;
    }
    T step[kPanelColumns][kPerWord];
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      for (int64_t i = 0; i < kPerWord; ++i) step[c][i] = rows[i][c];
    }
    std::memcpy(panel, step, sizeof step);
  }
}

// Scratch of the direct product: a in float32, addresses of b's rows, accumulators.
AETHER_INLINE size_t direct_matmul_bytes(int64_t rows, int64_t k) {
  const int64_t num_floats = rows * (k + kDirectColumns);
  return static_cast<size_t>(num_floats) * sizeof(float) + static_cast<size_t>(k) * sizeof(void*);
}

template <class T>
AETHER_INLINE void multiply_direct(const T* a, const T* b, T* out, const MatmulShape<T>& shape, int64_t num_columns,
                                   void* scratch) {
  const int64_t rows = shape.rows, k = shape.k;
  const T** b_rows = static_cast<const T**>(scratch);
  float* weights = reinterpret_cast<float*>(b_rows + k);
  float* sums = weights + rows * k;
  float zeros[kDirectRows] = {};
  for (int64_t i = 0; i < k; ++i) b_rows[i] = b + i * shape.columns;
  for (int64_t i = 0; i < rows * k; i += kLanes) {
    const int64_t lanes = smaller(rows * k - i, kLanes);
    store(weights + i, load(a + i, lanes), lanes);
  }
  std::memset(sums, 0, static_cast<size_t>(rows * kDirectColumns) * sizeof(float));
  accumulate_weighted_rows(weights, k, rows, b_rows, 0, k, num_columns, zeros, sums, kDirectColumns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < num_columns; j += kLanes) {
      store(out + r * shape.columns + j, load(sums + r * kDirectColumns + j), smaller(num_columns - j, kLanes));
    }
  }
}

template <class T>
void matmul(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  using Micro = Microkernel<T>;
  const MatmulShape<T> shape(in[0], in[1]);
  if (num_elements(out[0]) == 0) return;
  if (kIsDirect<T> && shape.rows <= kDirectRows) {
    const int64_t column_blocks = ceil_div(shape.columns, kDirectColumns);
    for_each_claimed(team, num_elements(out[0]) / (shape.rows * shape.columns) * column_blocks, [&](int64_t item) {
      const int64_t matrix = item / column_blocks, column = item % column_blocks * kDirectColumns;
      multiply_direct(data<const T>(in[0]) + matrix * shape.rows * shape.k,
                      data<const T>(in[1]) + matrix * shape.k * shape.columns + column,
                      data<T>(out[0]) + matrix * shape.rows * shape.columns + column, shape,
                      smaller(kDirectColumns, shape.columns - column), team->scratch);
    });
    return;
  }
  char* tiles = static_cast<char*>(team->scratch);
  char* packed = tiles + shape.tile_bytes();
  float* sums = reinterpret_cast<float*>(packed + shape.group * shape.panel_bytes());
  const int64_t num_matrices = num_elements(out[0]) / (shape.rows * shape.columns);
  for_each_claimed(team, num_matrices * shape.groups * shape.row_blocks, [&](int64_t item) {
    const int64_t matrix = item / (shape.groups * shape.row_blocks);
    const int64_t row = item % shape.row_blocks * shape.row_block;
    const int64_t num_rows = smaller(shape.row_block, shape.rows - row);
    const int64_t first = item / shape.row_blocks % shape.groups * shape.group;
    const int64_t num_panels = smaller(shape.group, shape.panels - first);
    const int64_t column = first * kPanelColumns;
    const int64_t num_columns = smaller(num_panels * kPanelColumns, shape.columns - column);
    if (num_rows <= 0) return;
    const T* a = data<const T>(in[0]) + (matrix * shape.rows + row) * shape.k;
    const T* b = data<const T>(in[1]) + matrix * shape.k * shape.columns + column;
    T* target = data<T>(out[0]) + (matrix * shape.rows + row) * shape.columns + column;
    const char* panels[kMatmulPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = packed + p * shape.panel_bytes();
    // Once even if K is zero, which sets the sums to zero.
    for (int64_t k = 0; k == 0 || k < shape.k; k += kMatmulBlockK) {
      const int64_t k_count = smaller(kMatmulBlockK, shape.k - k);
      pack_tiles<Micro>([&](int64_t r) { return a + r * shape.k; }, num_rows, k, k_count, tiles);
      for (int64_t p = 0; p < num_panels; ++p) {
        pack_columns(b + k * shape.columns + p * kPanelColumns, shape.columns, k_count,
                     smaller(num_columns - p * kPanelColumns, kPanelColumns), packed + p * shape.panel_bytes());
      }
      multiply_tiles<Micro>(tiles, num_rows, k_count, panels, num_panels, 0, k == 0, sums);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* row_sums = sums + r * num_panels * kPanelColumns;
      for (int64_t j = 0; j < num_columns; j += kLanes) {
        store(target + r * shape.columns + j, load(row_sums + j), smaller(num_columns - j, kLanes));
      }
    }
  });
}

template <class T>
size_t matmul_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  const MatmulShape<T> shape(in[0], in[1]);
  const size_t direct = direct_matmul_bytes(smaller(shape.rows, kDirectRows), shape.k), packed = shape.bytes();
  return direct > packed ? direct : packed;
}

}  // namespace aether::cpu::AETHER_ISA
