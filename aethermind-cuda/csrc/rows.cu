// Row copies without arithmetic: gather_rows and position_embedding select rows by index, scatter_rows replaces rows,
// take_experts, select and concat copy some of the vectors of every token, permute_heads, transpose and permute reorder
// dims, and expand repeats them.
// Elements are copied as words of 2 or 4 bytes.

#include "common/dependent_launch.cuh"
#include "common/loops.cuh"
#include "common/memory.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

using word16 = uint16_t;
using word32 = uint32_t;

template <class Word, int N>
__device__ __forceinline__ void copy_words(Word* out, const Word* row, int width) {
  for (int i = static_cast<int>(threadIdx.x) * N; i < width; i += static_cast<int>(blockDim.x) * N) {
    Vector<Word, N>::load(row + i).store(out + i);
  }
}

template <class Word>
__device__ __forceinline__ void copy_row(Word* out, const Word* row, int width) {
  if (is_vectorizable(out, width) && is_vectorizable(row, width)) {
    copy_words<Word, Vector<Word>::size>(out, row, width);
  } else {
    copy_words<Word, 1>(out, row, width);
  }
}

template <class Word, class Index>
__device__ __forceinline__ void gather_rows(Word* out, const Word* table, const Index* rows, int num_rows, int width) {
  const Index row = checked_index(rows[blockIdx.x], num_rows);
  copy_row(out + static_cast<int64_t>(blockIdx.x) * width, table + static_cast<int64_t>(row) * width, width);
}

// Block t searches for its row among the replaced ones.
template <class Word>
__device__ __forceinline__ void scatter_rows(Word* out, const Word* x, const Word* values, const int* rows,
                                             int num_replaced, int width) {
  const int index = static_cast<int>(blockIdx.x);
  __shared__ int replaced_by;
  if (threadIdx.x == 0) {
    replaced_by = -1;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_replaced; i += static_cast<int>(blockDim.x)) {
    if (rows[i] == index) {
      replaced_by = i;
    }
  }
  __syncthreads();
  const int64_t row = static_cast<int64_t>(index) * width;
  copy_row(out + row, replaced_by < 0 ? x + row : values + static_cast<int64_t>(replaced_by) * width, width);
}

// out[t, i] = all[t, ids[t, first + i]] for all[T, num_vectors, width] and ids[T, num_ids]. Block t · count + i.
template <class Word>
__device__ __forceinline__ void take_experts(Word* out, const Word* all, const int* ids, int num_vectors, int num_ids,
                                             int first, int count, int width) {
  const int token = static_cast<int>(blockIdx.x) / count, choice = static_cast<int>(blockIdx.x) % count;
  const int id = checked_index(ids[static_cast<int64_t>(token) * num_ids + first + choice], num_vectors);
  copy_row(out + static_cast<int64_t>(blockIdx.x) * width,
           all + (static_cast<int64_t>(token) * num_vectors + id) * width, width);
}

// The first `width` of the `stride` elements of x[t] to the first of the `out_stride` elements of out[t]. Block t.
template <class Word>
__device__ __forceinline__ void copy_columns(Word* out, const Word* x, int out_stride, int stride, int width) {
  copy_row(out + static_cast<int64_t>(blockIdx.x) * out_stride, x + static_cast<int64_t>(blockIdx.x) * stride, width);
}

// [batch, rows, columns, width] to [batch, columns, rows, width]; a block copies one vector of `width`.
template <class Word>
__device__ __forceinline__ void permute_heads(Word* out, const Word* x, int num_rows, int num_columns, int width) {
  const int64_t source = blockIdx.x;
  const int64_t column = source % num_columns;
  const int64_t row = source / num_columns % num_rows;
  const int64_t batch = source / num_columns / num_rows;
  copy_row(out + ((batch * num_columns + column) * num_rows + row) * width, x + source * width, width);
}

// out[i] = the element of x at the offset of iteration i.
template <class Word>
__device__ __forceinline__ void copy_strided(Word* out, const Word* x, int64_t count, const Loops<1>& loops) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    out[i] = x[offsets_of(loops, i).of[0]];
  }
}

constexpr int kTile = 32;

// [batch, rows, columns] to [batch, columns, rows]. A block of 32 × 8 threads transposes a square tile.
template <class Word>
__device__ __forceinline__ void transpose(Word* out, const Word* x, int num_rows, int num_columns) {
  __shared__ Word tile[kTile][kTile + 4 / sizeof(Word)];  // padded: columns are in distinct banks
  const int64_t matrix = static_cast<int64_t>(blockIdx.z) * num_rows * num_columns;
  const int row = static_cast<int>(blockIdx.y) * kTile, column = static_cast<int>(blockIdx.x) * kTile;
  const int lane = lane_index();
  for (int i = warp_index(); i < kTile; i += static_cast<int>(blockDim.x) / kWarpSize) {
    if (row + i < num_rows && column + lane < num_columns) {
      tile[i][lane] = x[matrix + static_cast<int64_t>(row + i) * num_columns + column + lane];
    }
  }
  __syncthreads();
  for (int i = warp_index(); i < kTile; i += static_cast<int>(blockDim.x) / kWarpSize) {
    if (column + i < num_columns && row + lane < num_rows) {
      out[matrix + static_cast<int64_t>(column + i) * num_rows + row + lane] = tile[lane][i];
    }
  }
}

}  // namespace aether

#define AETHER_ROWS(word)                                                                                              \
  extern "C" __global__ void rows_gather_rows_##word(aether::word* out, const aether::word* x, const int* rows,        \
                                                     int num_rows, int width) {                                        \
    aether::begin_kernel();                                                                                            \
    aether::gather_rows(out, x, rows, num_rows, width);                                                                \
  }                                                                                                                    \
  extern "C" __global__ void rows_position_embedding_##word(aether::word* out, const aether::word* table,              \
                                                            const int64_t* positions, int num_rows, int width) {       \
    aether::begin_kernel();                                                                                            \
    aether::gather_rows(out, table, positions, num_rows, width);                                                       \
  }                                                                                                                    \
  extern "C" __global__ void rows_scatter_rows_##word(aether::word* out, const aether::word* x,                        \
                                                      const aether::word* values, const int* rows, int num_replaced,   \
                                                      int width) {                                                     \
    aether::begin_kernel();                                                                                            \
    aether::scatter_rows(out, x, values, rows, num_replaced, width);                                                   \
  }                                                                                                                    \
  extern "C" __global__ void rows_take_experts_##word(aether::word* out, const aether::word* all, const int* ids,      \
                                                      int num_vectors, int num_ids, int first, int count, int width) { \
    aether::begin_kernel();                                                                                            \
    aether::take_experts(out, all, ids, num_vectors, num_ids, first, count, width);                                    \
  }                                                                                                                    \
  extern "C" __global__ void rows_copy_columns_##word(aether::word* out, const aether::word* x, int out_stride,        \
                                                      int stride, int width) {                                         \
    aether::begin_kernel();                                                                                            \
    aether::copy_columns(out, x, out_stride, stride, width);                                                           \
  }                                                                                                                    \
  extern "C" __global__ void rows_permute_heads_##word(aether::word* out, const aether::word* x, int num_rows,         \
                                                       int num_columns, int width) {                                   \
    aether::begin_kernel();                                                                                            \
    aether::permute_heads(out, x, num_rows, num_columns, width);                                                       \
  }                                                                                                                    \
  extern "C" __global__ void rows_copy_strided_##word(aether::word* out, const aether::word* x, int64_t count,         \
                                                      aether::Loops<1> loops) {                                        \
    aether::begin_kernel();                                                                                            \
    aether::copy_strided(out, x, count, loops);                                                                        \
  }                                                                                                                    \
  extern "C" __global__ void rows_transpose_##word(aether::word* out, const aether::word* x, int num_rows,             \
                                                   int num_columns) {                                                  \
    aether::begin_kernel();                                                                                            \
    aether::transpose(out, x, num_rows, num_columns);                                                                  \
  }
AETHER_ROWS(word16)
AETHER_ROWS(word32)
