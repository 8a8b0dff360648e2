// add_rms_norm: total[R, W] = x + residual, rounded to the dtype; out = rms_norm(total, offset + weight[W]), in
// float32. A block processes one row.

#include "common/dependent_launch.cuh"
#include "common/norm.cuh"

namespace aether {

// A thread rereads only what it wrote, so out may alias x and total may alias residual without a barrier.
template <class T, int N>
__device__ __forceinline__ void add_rms_norm_row(T* out, T* total, const T* x, const T* residual, const T* weight,
                                                 int width, float eps, float offset) {
  const int step = static_cast<int>(blockDim.x) * N;
  const int first = static_cast<int>(threadIdx.x) * N;
  float squares = 0.0f;
  Vector<T, N> first_values{};
  for (int i = first; i < width; i += step) {
    const auto a = Vector<T, N>::load(x + i);
    const auto b = Vector<T, N>::load(residual + i);
    Vector<T, N> sums;
    for (int j = 0; j < N; ++j) {
      sums.values[j] = from_float<T>(to_float(a.values[j]) + to_float(b.values[j]));
      const float value = to_float(sums.values[j]);
      squares += value * value;
    }
    sums.store(total + i);
    first_values = i == first ? sums : first_values;
  }
  write_normed_row<T, N>(out, total, weight, width, squares, eps, offset, first_values);
}

template <class T>
__device__ __forceinline__ void add_rms_norm(T* out, T* total, const T* x, const T* residual, const T* weight,
                                             int width, float eps, float offset) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  if (is_vectorizable(x, width) && is_vectorizable(residual, width) && is_vectorizable(out, width) &&
      is_vectorizable(total, width) && is_vectorizable(weight, width)) {
    add_rms_norm_row<T, Vector<T>::size>(out + row, total + row, x + row, residual + row, weight, width, eps, offset);
  } else {
    add_rms_norm_row<T, 1>(out + row, total + row, x + row, residual + row, weight, width, eps, offset);
  }
}

}  // namespace aether

#define AETHER_ADD_RMS_NORM(dtype)                                                                                  \
  extern "C" __global__ void add_rms_norm_##dtype(aether::dtype* out, aether::dtype* total, const aether::dtype* x, \
                                                  const aether::dtype* residual, const aether::dtype* weight,       \
                                                  int width, float eps, float offset) {                             \
    aether::begin_kernel();                                                                                         \
    aether::add_rms_norm(out, total, x, residual, weight, width, eps, offset);                                      \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ADD_RMS_NORM)
