// permute and expand: copies of a tensor in another order of its dims, or with dims of 1 repeated.
#pragma once

#include <cstring>

#include "kernels/loops.h"
#include "kernels/team.h"
#include "kernels/transpose.h"

namespace aether::cpu::AETHER_ISA {

// Copies a row of `n` elements, or one element n times.
template <class T>
AETHER_INLINE void copy_row(T* target, const T* source, bool is_repeated, int64_t n) {
  if (is_repeated) {
    for (int64_t i = 0; i < n; ++i) target[i] = source[0];
  } else {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(T));
  }
}

// Copies whose source is contiguous or repeated in the innermost loop.
template <class T>
AETHER_INLINE void copy_rows(Loops<1> loops, const T* source, T* target, const am_team* team) {
  const bool is_repeated = loops.count > 0 && loops.stride[0][loops.count - 1] == 0;
  const int64_t size = loops.count > 0 ? loops.size[loops.count - 1] : 1;
  if (loops.count > 0) --loops.count;
  const Range range = share(team, loops.num_iterations() * size, kTransposeBlock);
  if (range.begin >= range.end) return;
  Position<1> row(loops, range.begin / size);
  for (int64_t i = range.begin; i < range.end; row.next()) {
    const int64_t first = i % size, n = smaller(size - first, range.end - i);
    copy_row(target + i, source + row.offset[0] + (is_repeated ? 0 : first), is_repeated, n);
    i += n;
  }
}

// Copies whose source is contiguous in the loop `across` instead of the innermost one: transposes of blocks.
template <class T>
AETHER_INLINE void copy_transposed(const Loops<2>& loops, int32_t across, const T* source, T* target,
                                   const am_team* team) {
  const int32_t last = loops.count - 1;
  const int64_t rows = loops.size[last], row_stride = loops.stride[0][last];
  const int64_t columns = loops.size[across], column_stride = loops.stride[1][across];
  Loops<2> outer = loops;
  outer.remove(last);
  outer.remove(across);
  const int64_t column_blocks = ceil_div(columns, kTransposeBlock), row_blocks = ceil_div(rows, kTransposeBlock);
  const int64_t blocks = column_blocks * row_blocks;
  const Range items = share(team, outer.num_iterations() * blocks);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const Position<2> matrix(outer, item / blocks);
    const int64_t begin = item % column_blocks * kTransposeBlock, end = smaller(begin + kTransposeBlock, columns);
    const int64_t first = item % blocks / column_blocks * kTransposeBlock,
                  size = smaller(kTransposeBlock, rows - first);
    const T* from = source + matrix.offset[0] + first * row_stride;
    T* to = target + matrix.offset[1] + first;
    T block[kTransposeBlock][kTransposeBlock];
    for (int64_t r = 0; r < size; ++r) {
      for (int64_t c = begin; c < end; ++c) block[c - begin][r] = from[r * row_stride + c];
    }
    for (int64_t c = begin; c < end; ++c) {
      std::memcpy(to + c * column_stride, block[c - begin], static_cast<size_t>(size) * sizeof(T));
    }
  }
}

template <class T>
void permute(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  if (num_elements(out[0]) == 0) return;
  int64_t from[AM_MAX_DIMS], to[AM_MAX_DIMS];
  strides_of(in[0], from);
  strides_of(out[0], to);
  Loops<2> loops;
  for (int32_t d = 0; d < out[0].ndim; ++d) {
    const int64_t dim = attrs[0].list[1 + d];
    loops.add(out[0].shape[d], {from[dim < 0 ? dim + in[0].ndim : dim], to[d]});
  }
  int32_t contiguous = 0;
  for (int32_t d = 0; d < loops.count; ++d) contiguous = loops.stride[0][d] == 1 ? d : contiguous;
  if (contiguous < loops.count - 1) {
    copy_transposed(loops, contiguous, data<const T>(in[0]), data<T>(out[0]), team);
    return;
  }
  Loops<1> rows;
  for (int32_t d = 0; d < loops.count; ++d) rows.add(loops.size[d], {loops.stride[0][d]});
  copy_rows(rows, data<const T>(in[0]), data<T>(out[0]), team);
}

template <class T>
void expand(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  if (num_elements(out[0]) == 0) return;
  int64_t strides[AM_MAX_DIMS];
  strides_in(in[0], out[0], strides);
  Loops<1> loops;
  for (int32_t d = 0; d < out[0].ndim; ++d) loops.add(out[0].shape[d], {strides[d]});
  copy_rows(loops, data<const T>(in[0]), data<T>(out[0]), team);
}

}  // namespace aether::cpu::AETHER_ISA
