// The scaling pass of RMS norms, shared by rms_norm and add_rms_norm.
#pragma once

#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

// out = x * (offset + weight) / sqrt(mean of squares + eps) over a row; `squares` is this thread's partial sum. out may
// be x. A thread reads only the elements of x that it summed; `first_values` are the first of them.
template <class T, int N>
__device__ __forceinline__ void write_normed_row(T* out, const T* x, const T* weight, int width, float squares,
                                                 float eps, float offset, const Vector<T, N>& first_values) {
  const int step = static_cast<int>(blockDim.x) * N;
  const int first = static_cast<int>(threadIdx.x) * N;
  // The load of the weight overlaps the block reduction.
  Vector<T, N> values = first_values, weights{};
  if (first < width) {
    weights = Vector<T, N>::load(weight + first);
  }
  const float scale = rsqrtf(block_reduce<Sum>(squares) / static_cast<float>(width) + eps);
  for (int i = first; i < width; i += step) {
    if (i != first) {
      values = Vector<T, N>::load(x + i);
      weights = Vector<T, N>::load(weight + i);
    }
    Vector<T, N> result;
    for (int j = 0; j < N; ++j) {
      result.values[j] = from_float<T>(to_float(values.values[j]) * scale * (offset + to_float(weights.values[j])));
    }
    result.store(out + i);
  }
}

}  // namespace aether
