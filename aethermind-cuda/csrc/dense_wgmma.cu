// linear, lm_head and gate_up_silu of 9 to 128 tokens with dense 16-bit weights on compute capability 9.0: see
// common/dense_wgmma.cuh. Names: the most tokens, and the blocks that divide the inputs.
// Targets: 90a

#include "common/dense_wgmma.cuh"

#define AETHER_DENSE_WGMMA(name, dtype, tokens, splits, is_gated)                                                   \
  extern "C" __global__ void __cluster_dims__(splits, 1, 1) __launch_bounds__(aether::max_dense_threads(tokens), 1) \
      name##_wgmma##tokens##_##splits##_##dtype(                                                                    \
          const __grid_constant__ aether::TensorMap first, const __grid_constant__ aether::TensorMap second,        \
          const __grid_constant__ aether::TensorMap inputs, void* out, const aether::dtype* bias, int num_tokens,   \
          int num_outputs, int num_steps, int tile_rows, int num_stages, int is_float32) {                          \
    aether::multiply_dense_wgmma<aether::dtype, tokens, splits, is_gated>(                                          \
        first, second, inputs, {out, bias, num_tokens, num_outputs, num_steps, tile_rows, num_stages, is_float32}); \
  }
#define AETHER_DENSE_WGMMA_TOKENS(dtype, tokens)      \
  AETHER_DENSE_WGMMA(linear, dtype, tokens, 1, false) \
  AETHER_DENSE_WGMMA(linear, dtype, tokens, 4, false) \
  AETHER_DENSE_WGMMA(gate_up_silu, dtype, tokens, 1, true)
#define AETHER_DENSE_WGMMA_DTYPE(dtype) \
  AETHER_DENSE_WGMMA_TOKENS(dtype, 16)  \
  AETHER_DENSE_WGMMA_TOKENS(dtype, 32)  \
  AETHER_DENSE_WGMMA_TOKENS(dtype, 64)  \
  AETHER_DENSE_WGMMA_TOKENS(dtype, 128)

AETHER_DENSE_WGMMA_DTYPE(float16)
AETHER_DENSE_WGMMA_DTYPE(bfloat16)
