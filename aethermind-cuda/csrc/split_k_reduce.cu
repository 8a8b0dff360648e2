// Split-K reduction: sums the float32 partials [splits, weights, T, N] of project_tiled (common/projection.cuh) in the
// order of K and applies the epilogue.

#include "common/dependent_launch.cuh"
#include "common/projection.cuh"

#define AETHER_SPLIT_K_REDUCE(name, kWeights, dtype)                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                                                  \
      name##_##dtype(void* out, const float* partials, const aether::dtype* bias, int num_tokens, int num_outputs,   \
                     int is_float32, int num_splits) {                                                               \
    aether::begin_kernel();                                                                                          \
    aether::split_k_reduce<aether::dtype, kWeights>({out, bias, num_tokens, num_outputs, is_float32 != 0}, partials, \
                                                    num_splits);                                                     \
  }
#define AETHER_SPLIT_K_REDUCE_ALL(dtype)          \
  AETHER_SPLIT_K_REDUCE(split_k_reduce, 1, dtype) \
  AETHER_SPLIT_K_REDUCE(split_k_reduce_silu, 2, dtype)

AETHER_SPLIT_K_REDUCE_ALL(float16)
AETHER_SPLIT_K_REDUCE_ALL(bfloat16)
