// rms_norm: x[R, W] / sqrt(mean(x²) + eps) * (offset + weight[W]), in float32. A block processes one row.

#include "common/dependent_launch.cuh"
#include "common/norm.cuh"

namespace aether {

template <class T, int N>
__device__ __forceinline__ void rms_norm_row(T* out, const T* x, const T* weight, int width, float eps, float offset) {
  const int step = static_cast<int>(blockDim.x) * N;
  const int first = static_cast<int>(threadIdx.x) * N;
  float sum_of_squares = 0.0f;
  Vector<T, N> first_values{};  // kept in registers, so that they are not loaded again
  for (int i = first; i < width; i += step) {
    const auto values = Vector<T, N>::load(x + i);
    first_values = i == first ? values : first_values;
    for (int j = 0; j < N; ++j) {
      const float value = to_float(values.values[j]);
      sum_of_squares += value * value;
    }
  }
  write_normed_row<T, N>(out, x, weight, width, sum_of_squares, eps, offset, first_values);
}

// out may alias x.
template <class T>
__device__ __forceinline__ void rms_norm(T* out, const T* x, const T* weight, int width, float eps, float offset) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  if (is_vectorizable(x, width) && is_vectorizable(out, width) && is_vectorizable(weight, width)) {
    rms_norm_row<T, Vector<T>::size>(out + row, x + row, weight, width, eps, offset);
  } else {
    rms_norm_row<T, 1>(out + row, x + row, weight, width, eps, offset);
  }
}

}  // namespace aether

#define AETHER_RMS_NORM(dtype)                                                                                         \
  extern "C" __global__ void rms_norm_##dtype(aether::dtype* out, const aether::dtype* x, const aether::dtype* weight, \
                                              int width, float eps, float offset) {                                    \
    aether::begin_kernel();                                                                                            \
    aether::rms_norm(out, x, weight, width, eps, offset);                                                              \
  }
AETHER_FOR_EACH_FLOAT(AETHER_RMS_NORM)
