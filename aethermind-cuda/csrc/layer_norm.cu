// layer_norm: (x[R, W] - mean(x)) / sqrt(var(x) + eps) * weight[W] + bias[W], in float32. A block processes one row.

#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

// The variance is computed from centred values: mean(x²) - mean(x)² would cancel where x is far from zero.
template <class T, int N>
__device__ __forceinline__ void layer_norm_row(T* out, const T* x, const T* weight, const T* bias, int width,
                                               float eps) {
  const int step = static_cast<int>(blockDim.x) * N;
  const int first = static_cast<int>(threadIdx.x) * N;
  float sum = 0.0f;
  for (int i = first; i < width; i += step) {
    const auto values = Vector<T, N>::load(x + i);
    for (int j = 0; j < N; ++j) {
      sum += to_float(values.values[j]);
    }
  }
  const float mean = block_reduce<Sum>(sum) / static_cast<float>(width);
  float squares = 0.0f;
  for (int i = first; i < width; i += step) {
    const auto values = Vector<T, N>::load(x + i);
    for (int j = 0; j < N; ++j) {
      const float centred = to_float(values.values[j]) - mean;
      squares += centred * centred;
    }
  }
  const float scale = rsqrtf(block_reduce<Sum>(squares) / static_cast<float>(width) + eps);
  for (int i = first; i < width; i += step) {
    const auto values = Vector<T, N>::load(x + i);
    const auto weights = Vector<T, N>::load(weight + i);
    Vector<T, N> biases{};
    if (bias != nullptr) {
      biases = Vector<T, N>::load(bias + i);
    }
    Vector<T, N> result;
    for (int j = 0; j < N; ++j) {
      const float normed = (to_float(values.values[j]) - mean) * scale * to_float(weights.values[j]);
      result.values[j] = from_float<T>(bias == nullptr ? normed : normed + to_float(biases.values[j]));
    }
    result.store(out + i);
  }
}

// out may alias x; bias may be null.
template <class T>
__device__ __forceinline__ void layer_norm(T* out, const T* x, const T* weight, const T* bias, int width, float eps) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  if (is_vectorizable(x, width) && is_vectorizable(out, width) && is_vectorizable(weight, width) &&
      is_vectorizable(bias, width)) {
    layer_norm_row<T, Vector<T>::size>(out + row, x + row, weight, bias, width, eps);
  } else {
    layer_norm_row<T, 1>(out + row, x + row, weight, bias, width, eps);
  }
}

}  // namespace aether

#define AETHER_LAYER_NORM(dtype)                                                                                   \
  extern "C" __global__ void layer_norm_##dtype(aether::dtype* out, const aether::dtype* x,                        \
                                                const aether::dtype* weight, const aether::dtype* bias, int width, \
                                                float eps) {                                                       \
    aether::begin_kernel();                                                                                        \
    aether::layer_norm(out, x, weight, bias, width, eps);                                                          \
  }
AETHER_FOR_EACH_FLOAT(AETHER_LAYER_NORM)
