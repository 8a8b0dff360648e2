// matmul: out[…, M, N] = a[…, M, K] @ b[…, K, N], accumulated in float32. A block of 256 threads computes a 64 × 64
// tile.

#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kTile = 64;
constexpr int kTileInner = 16;
constexpr int kPerThread = 4;  // results per thread in each direction

template <class T>
__device__ __forceinline__ void matmul(T* out, const T* a, const T* b, int num_rows, int num_inner, int num_columns) {
  __shared__ float a_tile[kTileInner][kTile + 1];
  __shared__ float b_tile[kTileInner][kTile];
  const int64_t matrix = blockIdx.z;
  a += matrix * num_rows * num_inner;
  b += matrix * num_inner * num_columns;
  out += matrix * num_rows * num_columns;
  const int row = static_cast<int>(blockIdx.y) * kTile, column = static_cast<int>(blockIdx.x) * kTile;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int thread_row = thread / (kTile / kPerThread), thread_column = thread % (kTile / kPerThread);
  float sums[kPerThread][kPerThread] = {};
  for (int k = 0; k < num_inner; k += kTileInner) {
    __syncthreads();  // the previous tiles are no longer read
    for (int i = thread; i < kTile * kTileInner; i += threads) {
      const int r = i / kTileInner, d = i % kTileInner;
      const bool is_inside = row + r < num_rows && k + d < num_inner;
      a_tile[d][r] = is_inside ? to_float(a[static_cast<int64_t>(row + r) * num_inner + k + d]) : 0.0f;
    }
    for (int i = thread; i < kTile * kTileInner; i += threads) {
      const int d = i / kTile, c = i % kTile;
      const bool is_inside = k + d < num_inner && column + c < num_columns;
      b_tile[d][c] = is_inside ? to_float(b[static_cast<int64_t>(k + d) * num_columns + column + c]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kTileInner; ++d) {
      float rows[kPerThread], columns[kPerThread];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        rows[i] = a_tile[d][thread_row + i * (kTile / kPerThread)];
        columns[i] = b_tile[d][thread_column + i * (kTile / kPerThread)];
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
          sums[i][j] += rows[i] * columns[j];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int r = row + thread_row + i * (kTile / kPerThread), c = column + thread_column + j * (kTile / kPerThread);
      if (r < num_rows && c < num_columns) {
        out[static_cast<int64_t>(r) * num_columns + c] = from_float<T>(sums[i][j]);
      }
    }
  }
}

}  // namespace aether

#define AETHER_MATMUL(dtype)                                                                                          \
  extern "C" __global__ void __launch_bounds__(256)                                                                   \
      matmul_##dtype(aether::dtype* out, const aether::dtype* a, const aether::dtype* b, int num_rows, int num_inner, \
                     int num_columns) {                                                                               \
    aether::begin_kernel();                                                                                           \
    aether::matmul(out, a, b, num_rows, num_inner, num_columns);                                                      \
  }
AETHER_FOR_EACH_FLOAT(AETHER_MATMUL)
