// moe_combine: out[T, D] = the sum over a of weights[T, A] · x[T, A, D], in float32 and in the order of a. Block t
// computes token t.

#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace aether {

template <class T, int N>
__device__ __forceinline__ void combine_choices(T* out, const T* x, const float* weights, int num_chosen, int width) {
  for (int i = static_cast<int>(threadIdx.x) * N; i < width; i += static_cast<int>(blockDim.x) * N) {
    float sums[N] = {};
    for (int choice = 0; choice < num_chosen; ++choice) {
      const auto values = Vector<T, N>::load(x + static_cast<int64_t>(choice) * width + i);
      const float weight = weights[choice];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sums[j] += weight * to_float(values.values[j]);
      }
    }
    Vector<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      result.values[j] = from_float<T>(sums[j]);
    }
    result.store(out + i);
  }
}

template <class T>
__device__ __forceinline__ void moe_combine(T* out, const T* x, const float* weights, int num_chosen, int width) {
  const int64_t token = blockIdx.x;
  const bool is_wide = is_vectorizable(out, width) && is_vectorizable(x, width);
  out += token * width;
  x += token * num_chosen * width;
  weights += token * num_chosen;
  if (is_wide) {
    combine_choices<T, Vector<T>::size>(out, x, weights, num_chosen, width);
  } else {
    combine_choices<T, 1>(out, x, weights, num_chosen, width);
  }
}

}  // namespace aether

#define AETHER_MOE_COMBINE(dtype)                                                                                  \
  extern "C" __global__ void moe_combine_##dtype(aether::dtype* out, const aether::dtype* x, const float* weights, \
                                                 int num_chosen, int width) {                                      \
    aether::begin_kernel();                                                                                        \
    aether::moe_combine(out, x, weights, num_chosen, width);                                                       \
  }
AETHER_FOR_EACH_FLOAT(AETHER_MOE_COMBINE)
