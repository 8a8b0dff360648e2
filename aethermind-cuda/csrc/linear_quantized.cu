// linear and lm_head: out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N] with quantised weights (see
// common/quantized_weight.cuh).
//
// Kernels of up to eight tokens are bound by memory and by the instructions per weight: one is compiled for each affine
// term, and launch bounds let several blocks share a multiprocessor, to have more loads in flight.

#include "common/dependent_launch.cuh"
#include "common/projection.cuh"
#include "common/quantized_gemv.cuh"
#include "common/quantized_weight.cuh"

// Blocks per multiprocessor, where the compiler's register use allows it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define AETHER_SKINNY_MIN_BLOCKS 3
#else
#define AETHER_SKINNY_MIN_BLOCKS 2
#endif

#define AETHER_LINEAR(name, threads, min_blocks, kernel, bits, term, dtype, ...)                                       \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks)                                                    \
      name##_##dtype(void* out, const aether::dtype* x, const uint8_t* weight, const aether::dtype* bias,              \
                     int num_tokens, int num_outputs, int num_inputs, int is_float32, int num_blocks, int log2_chunks, \
                     int runtime_term, float* partials) {                                                              \
    aether::begin_kernel();                                                                                            \
    aether::kernel<aether::QuantizedWeight<aether::dtype, bits, aether::AffineTerm::term>, __VA_ARGS__>(               \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                            \
        {{weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::AffineTerm>(runtime_term)}},   \
        partials);                                                                                                     \
  }
// For inputs whose rows are multiples of 16 bytes.
#define AETHER_LINEAR_GEMV(format, bits, term, dtype, threads)                                                        \
  extern "C" __global__ void __launch_bounds__(threads, aether::kQuantizedBlocks)                                     \
      linear_quantized_gemv_##format##_##dtype(void* out, const aether::dtype* x, const uint8_t* weight,              \
                                               const aether::dtype* bias, int num_tokens, int num_outputs,            \
                                               int num_inputs, int is_float32, int num_blocks, int log2_chunks,       \
                                               int runtime_term, float*) {                                            \
    aether::quantized_gemv<aether::dtype, bits, aether::AffineTerm::term, 1>(                                         \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                           \
        {{weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::AffineTerm>(runtime_term)}}); \
  }
#define AETHER_LINEAR_GEMV_HALF(format, bits, term, threads) \
  AETHER_LINEAR_GEMV(format, bits, term, float16, threads)   \
  AETHER_LINEAR_GEMV(format, bits, term, bfloat16, threads)
#define AETHER_LINEAR_SKINNY(bits)                                                                         \
  AETHER_LINEAR(linear_quantized_skinny8_int##bits, 256, 1, project_skinny, bits, kRuntime, float32, 1, 1) \
  AETHER_LINEAR(linear_quantized_skinny8_int##bits, 256, 1, project_skinny, bits, kRuntime, float16, 1, 1) \
  AETHER_LINEAR(linear_quantized_skinny8_int##bits, 256, 1, project_skinny, bits, kRuntime, bfloat16, 1, 1)
// A kernel compiled for one affine term has no branches between products, but needs more registers.
#define AETHER_LINEAR_TILED(format, bits, term16, min_blocks16, term32, min_blocks32, dtype)                     \
  AETHER_LINEAR(linear_quantized_tiled16_##format, 128, min_blocks16, project_tiled, bits, term16, dtype, 16, 1) \
  AETHER_LINEAR(linear_quantized_tiled32_##format, 128, min_blocks32, project_tiled, bits, term32, dtype, 32, 1) \
  AETHER_LINEAR(linear_quantized_tiled64_##format, 128, 2, project_tiled, bits, kRuntime, dtype, 64, 1)
#define AETHER_LINEAR_TILED_HALF(format, bits, term16, min_blocks16, term32, min_blocks32) \
  AETHER_LINEAR_TILED(format, bits, term16, min_blocks16, term32, min_blocks32, float16)   \
  AETHER_LINEAR_TILED(format, bits, term16, min_blocks16, term32, min_blocks32, bfloat16)

AETHER_LINEAR_TILED_HALF(int8, 8, kNone, 2, kNone, 2)
AETHER_LINEAR_TILED_HALF(int8_affine, 8, kRuntime, 2, kRuntime, 2)
AETHER_LINEAR_TILED_HALF(int4, 4, kNone, AETHER_SKINNY_MIN_BLOCKS, kNone, 2)
AETHER_LINEAR_TILED_HALF(int4_affine, 4, kRuntime, 3, kRuntime, 3)
AETHER_LINEAR_TILED_HALF(int2, 2, kRuntime, 3, kRuntime, 3)
AETHER_LINEAR_TILED_HALF(int1, 1, kRuntime, 3, kRuntime, 3)
AETHER_LINEAR_SKINNY(8)
AETHER_LINEAR_SKINNY(4)
AETHER_LINEAR_SKINNY(2)
AETHER_LINEAR_SKINNY(1)
AETHER_LINEAR_GEMV_HALF(int8, 8, kNone, 256)
AETHER_LINEAR_GEMV_HALF(int8_zp, 8, kZeroPoints, 256)
AETHER_LINEAR_GEMV_HALF(int8_offset, 8, kOffsets, 256)
AETHER_LINEAR_GEMV_HALF(int4, 4, kNone, 320)
AETHER_LINEAR_GEMV_HALF(int4_zp, 4, kZeroPoints, 256)
AETHER_LINEAR_GEMV_HALF(int4_offset, 4, kOffsets, 256)
AETHER_LINEAR_GEMV_HALF(int2, 2, kZeroPoints, 256)
AETHER_LINEAR_GEMV_HALF(int1, 1, kNone, 320)
