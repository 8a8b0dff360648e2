// LoRA: y + (x · downᵀ) · up, where each row's adapter selects its rows of down and up.
//
// A work item is a block of rows by a range of columns: it computes x · downᵀ, whose results are few, and adds the rows
// of up weighted by it. With few rows several workers share a row block and divide its columns; each computes x · downᵀ
// itself, which costs less than a barrier.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"
#include "kernels/weighted_rows.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kLoraRowBlock = 12;
inline constexpr int64_t kLoraColumnBlock = 256;

// Register tile of x · downᵀ: rows × ranks, one vector accumulator each.
inline constexpr int kDotRows = kTilePanels > 1 ? 4 : 2;
inline constexpr int kDotRanks = kTilePanels > 1 ? 4 : 2;
inline constexpr int kDotRanksOfOneRow = 4;

// h[r][j] = x[r] · down[j] for R rows and C ranks. Results do not depend on R and C.
template <class T, int R, int C>
__attribute__((noinline)) void dot_rows(const T* x, const T* down, int64_t k, float* h, int64_t h_stride) {
  Vec sums[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) sums[r][j] = zero();
  }
  const auto add = [&](int64_t i, auto load_at) __attribute__((always_inline)) {
    Vec factors[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) factors[j] = load_at(down + j * k + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec value = load_at(x + r * k + i);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) sums[r][j] = fma(value, factors[j], sums[r][j]);
    }
  };
  const int64_t tail_begin = k - k % kLanes;
  for (int64_t i = 0; i < tail_begin; i += kLanes)
    add(i, [](const T* p) __attribute__((always_inline)) { return load(p); });
  if (tail_begin < k) {
    add(tail_begin, [lanes = k - tail_begin](const T* p) __attribute__((always_inline)) { return load(p, lanes); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) h[r * h_stride + j] = reduce_add(sums[r][j]);
  }
}

template <class T, int R, int C>
AETHER_INLINE void dot_all_ranks(const T* x, const T* down, int64_t num_ranks, int64_t k, float* h) {
  int64_t j = 0;
  for (; j + C <= num_ranks; j += C) dot_rows<T, R, C>(x, down + j * k, k, h + j, num_ranks);
  for (; j < num_ranks; ++j) dot_rows<T, R, 1>(x, down + j * k, k, h + j, num_ranks);
}

// Columns [begin, end) of `num_rows` rows of one adapter, with its rows of down and up.
template <class T>
AETHER_INLINE void add_adapter(const T* x, const T* y, T* out, int64_t num_rows, const T* down, const T* up,
                               int64_t num_ranks, int64_t k, int64_t n, Range columns, void* scratch) {
  const T** rows_of_up = static_cast<const T**>(scratch);
  float* sums = reinterpret_cast<float*>(rows_of_up + num_ranks);
  float* h = sums + kLoraRowBlock * kLoraColumnBlock;
  int64_t r = 0;
  for (; r + kDotRows <= num_rows; r += kDotRows) {
    dot_all_ranks<T, kDotRows, kDotRanks>(x + r * k, down, num_ranks, k, h + r * num_ranks);
  }
  for (; r < num_rows; ++r) {
    dot_all_ranks<T, 1, kDotRanksOfOneRow>(x + r * k, down, num_ranks, k, h + r * num_ranks);
  }
  float ones[kLoraRowBlock];
  for (float& factor : ones) factor = 1.0f;
  for (int64_t c = columns.begin; c < columns.end; c += kLoraColumnBlock) {
    const int64_t count = smaller(columns.end - c, kLoraColumnBlock);
    for (int64_t j = 0; j < num_ranks; ++j) rows_of_up[j] = up + j * n + c;
    for (r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < count; i += kLanes) {
        store(sums + r * kLoraColumnBlock + i, load(y + r * n + c + i, smaller(count - i, kLanes)));
      }
    }
    accumulate_weighted_rows(h, num_ranks, num_rows, rows_of_up, 0, num_ranks, count, ones, sums, kLoraColumnBlock);
    for (r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < count; i += kLanes) {
        store(out + r * n + c + i, load(sums + r * kLoraColumnBlock + i), smaller(count - i, kLanes));
      }
    }
  }
}

template <class T>
void add_low_rank(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const T *y = data<const T>(in[0]), *x = data<const T>(in[1]);
  const int32_t *cu_ranks = data<const int32_t>(in[4]), *adapters = data<const int32_t>(in[5]);
  const int64_t rows = in[0].shape[0], n = in[0].shape[1], k = in[1].shape[1];
  T* target = data<T>(out[0]);
  const int64_t row_blocks = ceil_div(rows, kLoraRowBlock);
  if (row_blocks == 0 || n == 0) return;
  const int64_t ranges = smaller(ceil_div(team->num_workers, row_blocks), ceil_div(n, kLoraColumnBlock));
  const int64_t range = round_up(ceil_div(n, ranges), kLanes);
  for_each_claimed(team, row_blocks * ranges, [&](int64_t item) {
    const int64_t first_column = item % ranges * range;
    const Range columns = {first_column, smaller(first_column + range, n)};
    int64_t row = item / ranges * kLoraRowBlock;
    const int64_t end = smaller(row + kLoraRowBlock, rows);
    while (row < end) {
      const int32_t adapter = adapters[row];
      const int64_t first = row;
      while (row < end && adapters[row] == adapter) ++row;
      const int64_t begin = adapter < 0 ? 0 : cu_ranks[adapter];
      const int64_t num_ranks = adapter < 0 ? 0 : cu_ranks[adapter + 1] - begin;
      if (columns.begin >= columns.end) continue;
      if (num_ranks > 0) {
        add_adapter(x + first * k, y + first * n, target + first * n, row - first, data<const T>(in[2]) + begin * k,
                    data<const T>(in[3]) + begin * n, num_ranks, k, n, columns, team->scratch);
      } else if (target != y) {
        for (int64_t r = first; r < row; ++r) {
          std::memcpy(target + r * n + columns.begin, y + r * n + columns.begin,
                      static_cast<size_t>(columns.end - columns.begin) * sizeof(T));
        }
      }
    }
  });
}

template <class T>
size_t add_low_rank_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  const int64_t num_ranks = in[2].shape[0];
  const int64_t num_floats = kLoraRowBlock * (kLoraColumnBlock + num_ranks);
  return static_cast<size_t>(num_ranks) * sizeof(void*) + static_cast<size_t>(num_floats) * sizeof(float);
}

}  // namespace aether::cpu::AETHER_ISA
