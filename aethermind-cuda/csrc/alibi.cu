// alibi (Press et al. 2022): scores[B, H, Q, K] + slopes[h] · (key position - query position). A block processes the
// keys of one query; out may alias scores.

#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace aether {

template <class T>
__device__ __forceinline__ void alibi(T* out, const T* scores, const float* slopes, int num_heads, int num_queries,
                                      int num_keys) {
  const int64_t row = blockIdx.x;
  const int position = static_cast<int>(row % num_queries) + num_keys - num_queries;
  const float slope = slopes[row / num_queries % num_heads];
  for (int key = static_cast<int>(threadIdx.x); key < num_keys; key += static_cast<int>(blockDim.x)) {
    const float biased = to_float(scores[row * num_keys + key]) + slope * static_cast<float>(key - position);
    out[row * num_keys + key] = from_float<T>(biased);
  }
}

}  // namespace aether

#define AETHER_ALIBI(dtype)                                                                                      \
  extern "C" __global__ void alibi_##dtype(aether::dtype* out, const aether::dtype* scores, const float* slopes, \
                                           int num_heads, int num_queries, int num_keys) {                       \
    aether::begin_kernel();                                                                                      \
    aether::alibi(out, scores, slopes, num_heads, num_queries, num_keys);                                        \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ALIBI)
