// out[T, N] = row_scales[T] · column_scales[N] · sums[T, N] + bias[N]: the scales of a product of fp8 codes, for GPUs on
// which cuBLASLt does not apply them. Grid x: columns, y: rows.

#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kColumns = 4;  // of a thread

template <class T>
__device__ __forceinline__ void scale_outer(T* out, const float* sums, const float* row_scales,
                                            const float* column_scales, const T* bias, int num_columns) {
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kColumns;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * num_columns;
  const float row_scale = row_scales[blockIdx.y];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = first + i;
    if (column < num_columns) {
      const float scaled = row_scale * column_scales[column] * sums[row + column];
      out[row + column] = from_float<T>(bias == nullptr ? scaled : scaled + to_float(bias[column]));
    }
  }
}

}  // namespace aether

#define AETHER_SCALE_OUTER(dtype)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                  \
      scale_outer_##dtype(aether::dtype* out, const float* sums, const float* row_scales,                            \
                          const float* column_scales, const aether::dtype* bias, int num_columns) {                  \
    aether::begin_kernel();                                                                                          \
    aether::scale_outer(out, sums, row_scales, column_scales, bias, num_columns);                                    \
  }
AETHER_SCALE_OUTER(float16)
AETHER_SCALE_OUTER(bfloat16)
