// linear and lm_head: out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N] with weights in fp8 (see common/float8_weight.cuh)
// and inputs that are not quantised: a GEMV for a decode step, a tiled GEMM for more tokens, and float32.

#include "common/dependent_launch.cuh"
#include "common/float8_weight.cuh"
#include "common/project_gemv.cuh"
#include "common/projection.cuh"

#define AETHER_LINEAR(name, bounds, kernel, dtype, ...)                                                    \
  extern "C" __global__ void __launch_bounds__ bounds name##_##dtype(                                      \
      void* out, const aether::dtype* x, const uint8_t* weight, const aether::dtype* bias, int num_tokens, \
      int num_outputs, int num_inputs, int is_float32) {                                                   \
    aether::begin_kernel();                                                                                \
    aether::kernel<aether::Float8Weight<aether::dtype>, __VA_ARGS__>(                                      \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                \
        {{weight, num_outputs, num_inputs}});                                                              \
  }
#define AETHER_LINEAR_HALF(dtype)                                                                                     \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                \
      linear_float8_gemv_##dtype(void* out, const aether::dtype* x, const uint8_t* weight, const aether::dtype* bias, \
                                 int num_tokens, int num_outputs, int num_inputs, int is_float32) {                   \
    aether::project_gemv<aether::Float8Weight<aether::dtype>, 1>(                                                     \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                           \
        {{weight, num_outputs, num_inputs}});                                                                         \
  }                                                                                                                   \
  AETHER_LINEAR(linear_float8_tiled, (128, 2), project_tiled, dtype, 32, 1)

AETHER_LINEAR(linear_float8_skinny8, (256, 1), project_skinny, float32, 1, 1)
AETHER_LINEAR_HALF(float16)
AETHER_LINEAR_HALF(bfloat16)
