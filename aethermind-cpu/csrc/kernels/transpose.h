// Every matrix of the last two dimensions with rows and columns swapped.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Elements along one side of the blocks that are turned one at a time. They are turned in a block of their own: rows of
// a matrix may lie a power of two apart, where a cache holds only a few.
inline constexpr int64_t kTransposeBlock = 32;

template <class T>
void transpose(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int32_t ndim = in[0].ndim;
  const int64_t rows = in[0].shape[ndim - 2], columns = in[0].shape[ndim - 1];
  if (num_elements(in[0]) == 0) return;
  const int64_t bands = divide_up(columns, kTransposeBlock);
  const Range units = share(team, num_elements(in[0]) / (rows * columns) * bands);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t matrix = unit / bands * rows * columns;
    const int64_t begin = unit % bands * kTransposeBlock, end = smaller(begin + kTransposeBlock, columns);
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

}  // namespace aether::cpu::AETHER_ISA
