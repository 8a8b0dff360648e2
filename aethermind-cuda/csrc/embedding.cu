// embedding: out[T, W] = table[token_ids[t]]. A block copies one row.

#include "common/dependent_launch.cuh"
#include "common/memory.cuh"
#include "common/types.cuh"

namespace aether {

template <class T, int N>
__device__ __forceinline__ void copy_row(T* out, const T* row, int width) {
  for (int i = static_cast<int>(threadIdx.x) * N; i < width; i += static_cast<int>(blockDim.x) * N) {
    Vector<T, N>::load(row + i).store(out + i);
  }
}

template <class T>
__device__ __forceinline__ void embedding(T* out, const int* token_ids, const T* table, int num_rows, int width) {
  const int token = checked_index(token_ids[blockIdx.x], num_rows);
  T* target = out + static_cast<int64_t>(blockIdx.x) * width;
  const T* row = table + static_cast<int64_t>(token) * width;
  if (is_vectorizable(out, width) && is_vectorizable(table, width)) {
    copy_row<T, Vector<T>::size>(target, row, width);
  } else {
    copy_row<T, 1>(target, row, width);
  }
}

}  // namespace aether

#define AETHER_EMBEDDING(dtype)                                                                                      \
  extern "C" __global__ void embedding_##dtype(aether::dtype* out, const int* token_ids, const aether::dtype* table, \
                                               int num_rows, int width) {                                            \
    aether::begin_kernel();                                                                                          \
    aether::embedding(out, token_ids, table, num_rows, width);                                                       \
  }
AETHER_FOR_EACH_FLOAT(AETHER_EMBEDDING)
