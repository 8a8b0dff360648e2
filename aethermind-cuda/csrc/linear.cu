// linear and lm_head: out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N], dense row-major weights of float32, float16 or
// bfloat16: a GEMV and skinny GEMMs for a decode step, a tiled GEMM for prefill.

#include "common/dense_weight.cuh"
#include "common/dependent_launch.cuh"
#include "common/project_gemv.cuh"
#include "common/projection.cuh"

#define AETHER_LINEAR(name, bounds, kernel, dtype, ...)                                                          \
  extern "C" __global__ void __launch_bounds__ bounds name##_##dtype(                                            \
      void* out, const aether::dtype* x, const aether::dtype* weight, const aether::dtype* bias, int num_tokens, \
      int num_outputs, int num_inputs, int is_float32) {                                                         \
    aether::begin_kernel();                                                                                      \
    aether::kernel<aether::DenseWeight<aether::dtype>, __VA_ARGS__>(                                             \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                      \
        {{weight, num_outputs, num_inputs}});                                                                    \
  }
#define AETHER_LINEAR_FLOAT(dtype) AETHER_LINEAR(linear_skinny8, (256, 1), project_skinny, dtype, 1, 1)
#define AETHER_LINEAR_GEMV(dtype)                                                                                      \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                 \
      linear_gemv_##dtype(void* out, const aether::dtype* x, const aether::dtype* weight, const aether::dtype* bias,   \
                          int num_tokens, int num_outputs, int num_inputs, int is_float32) {                           \
    aether::project_gemv<aether::DenseWeight<aether::dtype>, 1>({out, bias, num_tokens, num_outputs, is_float32 != 0}, \
                                                                {x, num_tokens, num_inputs},                           \
                                                                {{weight, num_outputs, num_inputs}});                  \
  }
#define AETHER_LINEAR_HALF(dtype)                                       \
  AETHER_LINEAR_GEMV(dtype)                                             \
  AETHER_LINEAR_FLOAT(dtype)                                            \
  AETHER_LINEAR(linear_skinny32, (256, 2), project_skinny, dtype, 4, 1) \
  AETHER_LINEAR(linear_tiled, (128, 3), project_tiled, dtype, 64, 1)

AETHER_LINEAR_FLOAT(float32)
AETHER_LINEAR_HALF(float16)
AETHER_LINEAR_HALF(bfloat16)
