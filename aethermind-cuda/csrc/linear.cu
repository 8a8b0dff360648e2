// linear and lm_head: x · weightᵀ + bias, dense row-major weights.

#include "common/dense_weight.cuh"
#include "common/overlap.cuh"
#include "common/project_gemv.cuh"
#include "common/projection.cuh"

#define AETHER_LINEAR(name, bounds, project, dtype, ...)                                                         \
  extern "C" __global__ void __launch_bounds__ bounds name##_##dtype(                                            \
      void* out, const aether::dtype* x, const aether::dtype* weight, const aether::dtype* bias, int num_tokens, \
      int num_outputs, int num_inputs, int is_float32) {                                                         \
    aether::begin_kernel();                                                                                      \
    aether::project<aether::DenseWeight<aether::dtype>, __VA_ARGS__>(                                            \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                      \
        {{weight, num_outputs, num_inputs}});                                                                    \
  }
#define AETHER_LINEAR_FLOAT(dtype) AETHER_LINEAR(linear_few8, (256, 1), project_skinny, dtype, 1, 1)
#define AETHER_LINEAR_GEMV(dtype)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                               \
      linear_gemv_##dtype(void* out, const aether::dtype* x, const aether::dtype* weight, const aether::dtype* bias, \
                          int num_tokens, int num_outputs, int num_inputs, int is_float32) {                         \
    aether::project_gemv<aether::dtype, 1>({out, bias, num_tokens, num_outputs, is_float32 != 0},                    \
                                           {x, num_tokens, num_inputs}, {{weight, num_outputs, num_inputs}});        \
  }
#define AETHER_LINEAR_HALF(dtype)                                    \
  AETHER_LINEAR_GEMV(dtype)                                          \
  AETHER_LINEAR_FLOAT(dtype)                                         \
  AETHER_LINEAR(linear_few32, (256, 2), project_skinny, dtype, 4, 1) \
  AETHER_LINEAR(linear_many, (128, 3), project_large, dtype, 64, 1)

AETHER_LINEAR_FLOAT(float32)
AETHER_LINEAR_HALF(float16)
AETHER_LINEAR_HALF(bfloat16)
