// gate_up_silu: out[T, N] = silu(x[T, K] · w_gate[N, K]ᵀ) · (x · w_up[N, K]ᵀ), two GEMMs fused by their SwiGLU
// epilogue; dense row-major weights of float32, float16 or bfloat16.

#include "common/dense_weight.cuh"
#include "common/dependent_launch.cuh"
#include "common/project_gemv.cuh"
#include "common/projection.cuh"

#define AETHER_GATE_UP(name, bounds, kernel, dtype, ...)                                                         \
  extern "C" __global__ void __launch_bounds__ bounds name##_##dtype(                                            \
      void* out, const aether::dtype* x, const aether::dtype* w_gate, const aether::dtype* w_up, int num_tokens, \
      int num_outputs, int num_inputs) {                                                                         \
    aether::begin_kernel();                                                                                      \
    aether::kernel<aether::DenseWeight<aether::dtype>, __VA_ARGS__>(                                             \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                             \
        {{w_gate, num_outputs, num_inputs}, {w_up, num_outputs, num_inputs}});                                   \
  }
#define AETHER_GATE_UP_FLOAT(dtype) AETHER_GATE_UP(gate_up_silu_skinny8, (256, 1), project_skinny, dtype, 1, 2)
#define AETHER_GATE_UP_GEMV(dtype)                                                                            \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                        \
      gate_up_silu_gemv_##dtype(void* out, const aether::dtype* x, const aether::dtype* w_gate,               \
                                const aether::dtype* w_up, int num_tokens, int num_outputs, int num_inputs) { \
    aether::project_gemv<aether::DenseWeight<aether::dtype>, 2>(                                              \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                          \
        {{w_gate, num_outputs, num_inputs}, {w_up, num_outputs, num_inputs}});                                \
  }
#define AETHER_GATE_UP_HALF(dtype)                                             \
  AETHER_GATE_UP_GEMV(dtype)                                                   \
  AETHER_GATE_UP_FLOAT(dtype)                                                  \
  AETHER_GATE_UP(gate_up_silu_skinny32, (256, 1), project_skinny, dtype, 4, 2) \
  AETHER_GATE_UP(gate_up_silu_tiled, (128, 3), project_tiled, dtype, 64, 2)

AETHER_GATE_UP_FLOAT(float32)
AETHER_GATE_UP_HALF(float16)
AETHER_GATE_UP_HALF(bfloat16)
