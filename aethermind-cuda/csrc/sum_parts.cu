// Split-K reduction of projections: see project_large in common/projection.cuh.

#include "common/overlap.cuh"
#include "common/projection.cuh"

#define AETHER_SUM_PARTS(name, kWeights, dtype)                                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                                             \
      name##_##dtype(void* out, const float* parts, const aether::dtype* bias, int num_tokens, int num_outputs, \
                     int is_float32, int num_parts) {                                                           \
    aether::begin_kernel();                                                                                     \
    aether::sum_parts<aether::dtype, kWeights>({out, bias, num_tokens, num_outputs, is_float32 != 0}, parts,    \
                                               num_parts);                                                      \
  }
#define AETHER_SUM_PARTS_ALL(dtype)     \
  AETHER_SUM_PARTS(sum_parts, 1, dtype) \
  AETHER_SUM_PARTS(sum_parts_silu, 2, dtype)

AETHER_SUM_PARTS_ALL(float16)
AETHER_SUM_PARTS_ALL(bfloat16)
