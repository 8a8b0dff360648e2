// gate_up_silu: out[T, N] = silu(x[T, K] · w_gate[N, K]ᵀ) · (x · w_up[N, K]ᵀ) with weights in fp8 (see
// common/float8_weight.cuh) and inputs that are not quantised.

#include "common/dependent_launch.cuh"
#include "common/float8_weight.cuh"
#include "common/project_gemv.cuh"
#include "common/projection.cuh"

// Blocks per multiprocessor, where registers allow it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
#define AETHER_GEMV_MIN_BLOCKS 2
#else
#define AETHER_GEMV_MIN_BLOCKS 3
#endif

#define AETHER_GATE_UP(name, bounds, kernel, dtype, ...)                                                              \
  extern "C" __global__ void __launch_bounds__ bounds name##_##dtype(                                                 \
      void* out, const aether::dtype* x, const uint8_t* w_gate, const uint8_t* w_up, int num_tokens, int num_outputs, \
      int num_inputs) {                                                                                               \
    aether::begin_kernel();                                                                                           \
    aether::kernel<aether::Float8Weight<aether::dtype>, __VA_ARGS__>(                                                 \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                                  \
        {{w_gate, num_outputs, num_inputs}, {w_up, num_outputs, num_inputs}});                                        \
  }
#define AETHER_GATE_UP_HALF(dtype)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, AETHER_GEMV_MIN_BLOCKS)                                           \
      gate_up_silu_float8_gemv_##dtype(void* out, const aether::dtype* x, const uint8_t* w_gate, const uint8_t* w_up, \
                                       int num_tokens, int num_outputs, int num_inputs) {                             \
    aether::project_gemv<aether::Float8Weight<aether::dtype>, 2>(                                                     \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                                  \
        {{w_gate, num_outputs, num_inputs}, {w_up, num_outputs, num_inputs}});                                        \
  }                                                                                                                   \
  AETHER_GATE_UP(gate_up_silu_float8_tiled, (128, 2), project_tiled, dtype, 32, 2)

AETHER_GATE_UP(gate_up_silu_float8_skinny8, (256, 1), project_skinny, float32, 1, 2)
AETHER_GATE_UP_HALF(float16)
AETHER_GATE_UP_HALF(bfloat16)
