// gate_up_silu: out[T, N] = silu(x[T, K] · w_gate[N, K]ᵀ) · (x · w_up[N, K]ᵀ) with quantised weights of one format (see
// common/quantized_weight.cuh). Kernels and launch bounds are chosen as in linear_quantized.cu.

#include "common/dependent_launch.cuh"
#include "common/projection.cuh"
#include "common/quantized_gemv.cuh"
#include "common/quantized_weight.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define AETHER_SKINNY_MIN_BLOCKS 2
#else
#define AETHER_SKINNY_MIN_BLOCKS 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1000
#define AETHER_GEMV_MIN_BLOCKS 1
#else
#define AETHER_GEMV_MIN_BLOCKS aether::kQuantizedBlocks
#endif

#define AETHER_GATE_UP(name, threads, min_blocks, kernel, bits, term, dtype, ...)                                     \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks) name##_##dtype(                                   \
      void* out, const aether::dtype* x, const uint8_t* w_gate, const uint8_t* w_up, int num_tokens, int num_outputs, \
      int num_inputs, int num_blocks, int log2_chunks, int runtime_term, float* partials) {                           \
    aether::begin_kernel();                                                                                           \
    const auto runtime = static_cast<aether::AffineTerm>(runtime_term);                                               \
    aether::kernel<aether::QuantizedWeight<aether::dtype, bits, aether::AffineTerm::term>, __VA_ARGS__>(              \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                                  \
        {{w_gate, num_outputs, num_inputs, num_blocks, log2_chunks, runtime},                                         \
         {w_up, num_outputs, num_inputs, num_blocks, log2_chunks, runtime}},                                          \
        partials);                                                                                                    \
  }
// For inputs whose rows are multiples of 16 bytes.
#define AETHER_GATE_UP_GEMV(format, bits, term, dtype, threads)                                                     \
  extern "C" __global__ void __launch_bounds__(threads, AETHER_GEMV_MIN_BLOCKS)                                     \
      gate_up_silu_quantized_gemv_##format##_##dtype(                                                               \
          void* out, const aether::dtype* x, const uint8_t* w_gate, const uint8_t* w_up, int num_tokens,            \
          int num_outputs, int num_inputs, int num_blocks, int log2_chunks, int runtime_term, float*) {             \
    aether::quantized_gemv<aether::dtype, bits, aether::AffineTerm::term, 2>(                                       \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                                \
        {{w_gate, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::AffineTerm>(runtime_term)}, \
         {w_up, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::AffineTerm>(runtime_term)}}); \
  }
#define AETHER_GATE_UP_GEMV_HALF(format, bits, term, threads) \
  AETHER_GATE_UP_GEMV(format, bits, term, float16, threads)   \
  AETHER_GATE_UP_GEMV(format, bits, term, bfloat16, threads)
#define AETHER_GATE_UP_SKINNY(bits)                                                                               \
  AETHER_GATE_UP(gate_up_silu_quantized_skinny8_int##bits, 256, 1, project_skinny, bits, kRuntime, float32, 1, 2) \
  AETHER_GATE_UP(gate_up_silu_quantized_skinny8_int##bits, 256, 1, project_skinny, bits, kRuntime, float16, 1, 2) \
  AETHER_GATE_UP(gate_up_silu_quantized_skinny8_int##bits, 256, 1, project_skinny, bits, kRuntime, bfloat16, 1, 2)
// A kernel compiled for one affine term has no branches between products, but needs more registers.
#define AETHER_GATE_UP_TILED(format, bits, term16, min_blocks16, term32, min_blocks32, dtype)                        \
  AETHER_GATE_UP(gate_up_silu_quantized_tiled16_##format, 128, min_blocks16, project_tiled, bits, term16, dtype, 16, \
                 2)                                                                                                  \
  AETHER_GATE_UP(gate_up_silu_quantized_tiled32_##format, 128, min_blocks32, project_tiled, bits, term32, dtype, 32, \
                 2)                                                                                                  \
  AETHER_GATE_UP(gate_up_silu_quantized_tiled64_##format, 128, 2, project_tiled, bits, kRuntime, dtype, 64, 2)
#define AETHER_GATE_UP_TILED_HALF(format, bits, term16, min_blocks16, term32, min_blocks32) \
  AETHER_GATE_UP_TILED(format, bits, term16, min_blocks16, term32, min_blocks32, float16)   \
  AETHER_GATE_UP_TILED(format, bits, term16, min_blocks16, term32, min_blocks32, bfloat16)

AETHER_GATE_UP_TILED_HALF(int8, 8, kNone, 2, kNone, 2)
AETHER_GATE_UP_TILED_HALF(int8_affine, 8, kRuntime, 2, kRuntime, 2)
AETHER_GATE_UP_TILED_HALF(int4, 4, kNone, AETHER_SKINNY_MIN_BLOCKS + 1, kRuntime, 3)
AETHER_GATE_UP_TILED_HALF(int4_affine, 4, kRuntime, 3, kRuntime, 3)
AETHER_GATE_UP_TILED_HALF(int2, 2, kRuntime, 3, kRuntime, 3)
AETHER_GATE_UP_TILED_HALF(int1, 1, kRuntime, 3, kRuntime, 3)
AETHER_GATE_UP_SKINNY(8)
AETHER_GATE_UP_SKINNY(4)
AETHER_GATE_UP_SKINNY(2)
AETHER_GATE_UP_SKINNY(1)
AETHER_GATE_UP_GEMV_HALF(int8, 8, kNone, 256)
AETHER_GATE_UP_GEMV_HALF(int8_zp, 8, kZeroPoints, 160)
AETHER_GATE_UP_GEMV_HALF(int8_offset, 8, kOffsets, 160)
AETHER_GATE_UP_GEMV_HALF(int4, 4, kNone, 256)
AETHER_GATE_UP_GEMV_HALF(int4_zp, 4, kZeroPoints, 160)
AETHER_GATE_UP_GEMV_HALF(int4_offset, 4, kOffsets, 160)
AETHER_GATE_UP_GEMV_HALF(int2, 2, kZeroPoints, 160)
AETHER_GATE_UP_GEMV_HALF(int1, 1, kNone, 256)
