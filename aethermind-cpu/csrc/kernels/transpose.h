// Permutations of dimensions: transpose of the last two, and permute_heads.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Side of the blocks, in elements. Each is transposed within a local array: rows a power of two apart map to few sets
// of a cache.
inline constexpr int64_t kTransposeBlock = 32;

template <class T>
void transpose(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int32_t ndim = in[0].ndim;
  const int64_t rows = in[0].shape[ndim - 2], columns = in[0].shape[ndim - 1];
  if (num_elements(in[0]) == 0) return;
  const int64_t column_blocks = ceil_div(columns, kTransposeBlock);
  const Range items = share(team, num_elements(in[0]) / (rows * columns) * column_blocks);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t matrix = item / column_blocks * rows * columns;
    const int64_t begin = item % column_blocks * kTransposeBlock, end = smaller(begin + kTransposeBlock, columns);
    const T* source = data<const T>(in[0]) + matrix;
    T* target = data<T>(out[0]) + matrix;
    for (int64_t first = 0; first < rows; first += kTransposeBlock) {
      const int64_t last = smaller(first + kTransposeBlock, rows);
      T block[kTransposeBlock][kTransposeBlock];
      for (int64_t r = first; r < last; ++r) {
        const T* row = source + r * columns;
        for (int64_t c = begin; c < end; ++c) block[c - begin][r - first] = row[c];
      }
      for (int64_t c = begin; c < end; ++c) {
        std::memcpy(target + c * rows + first, block[c - begin], static_cast<size_t>(last - first) * sizeof(T));
      }
    }
  }
}

// [..., T, H, C] to [..., H, T, C].
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
