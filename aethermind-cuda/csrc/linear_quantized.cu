// linear and lm_head: x · weightᵀ + bias with quantised weights (see common/quantized_weight.cuh).
//
// Kernels of up to eight tokens are bound by memory and by the instructions per code: one is compiled for each affine
// term, and launch bounds let several blocks share a multiprocessor, to have more loads in flight.

#include "common/overlap.cuh"
#include "common/projection.cuh"
#include "common/quantized_gemv.cuh"
#include "common/quantized_weight.cuh"

// Blocks per multiprocessor, where the compiler's register use allows it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define AETHER_FEW_BLOCKS 3
#else
#define AETHER_FEW_BLOCKS 2
#endif

#define AETHER_LINEAR(name, threads, blocks, project, bits, shift, dtype, ...)                                    \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name##_##dtype(                                   \
      void* out, const aether::dtype* x, const uint8_t* weight, const aether::dtype* bias, int num_tokens,        \
      int num_outputs, int num_inputs, int is_float32, int num_blocks, int log2_chunks, int kind, float* parts) { \
    aether::begin_kernel();                                                                                       \
    aether::project<aether::QuantizedWeight<aether::dtype, bits, aether::Shift::shift>, __VA_ARGS__>(             \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                       \
        {{weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::Shift>(kind)}}, parts);   \
  }
// For inputs whose rows are multiples of 16 bytes.
#define AETHER_LINEAR_GEMV(format, bits, shift, dtype, threads, blocks)                                     \
  extern "C" __global__ void __launch_bounds__(threads, blocks) linear_quantized_gemv_##format##_##dtype(   \
      void* out, const aether::dtype* x, const uint8_t* weight, const aether::dtype* bias, int num_tokens,  \
      int num_outputs, int num_inputs, int is_float32, int num_blocks, int log2_chunks, int kind, float*) { \
    aether::quantized_gemv<aether::QuantizedWeight<aether::dtype, bits, aether::Shift::shift>, 1>(          \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                 \
        {{weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::Shift>(kind)}});    \
  }
#define AETHER_LINEAR_GEMV_HALF(format, bits, shift, threads, blocks) \
  AETHER_LINEAR_GEMV(format, bits, shift, float16, threads, blocks)   \
  AETHER_LINEAR_GEMV(format, bits, shift, bfloat16, threads, blocks)
#define AETHER_LINEAR_FEW(format, bits, shift, blocks)                                                   \
  AETHER_LINEAR(linear_quantized_few8_##format, 256, blocks, project_skinny, bits, shift, float16, 1, 1) \
  AETHER_LINEAR(linear_quantized_few8_##format, 256, blocks, project_skinny, bits, shift, bfloat16, 1, 1)
// A kernel compiled for one affine term has no branches between products, but needs more registers.
#define AETHER_LINEAR_MANY(format, bits, shift16, blocks16, shift32, blocks32, dtype)                        \
  AETHER_LINEAR(linear_quantized_many16_##format, 128, blocks16, project_large, bits, shift16, dtype, 16, 1) \
  AETHER_LINEAR(linear_quantized_many32_##format, 128, blocks32, project_large, bits, shift32, dtype, 32, 1) \
  AETHER_LINEAR(linear_quantized_many64_##format, 128, 2, project_large, bits, kAny, dtype, 64, 1)
#define AETHER_LINEAR_MANY_HALF(format, bits, shift16, blocks16, shift32, blocks32) \
  AETHER_LINEAR_MANY(format, bits, shift16, blocks16, shift32, blocks32, float16)   \
  AETHER_LINEAR_MANY(format, bits, shift16, blocks16, shift32, blocks32, bfloat16)
#define AETHER_LINEAR_FLOAT(bits) \
  AETHER_LINEAR(linear_quantized_few8_int##bits, 256, 1, project_skinny, bits, kAny, float32, 1, 1)

AETHER_LINEAR_FLOAT(8)
AETHER_LINEAR_FLOAT(4)
AETHER_LINEAR_FLOAT(2)
AETHER_LINEAR_FLOAT(1)
AETHER_LINEAR_MANY_HALF(int8, 8, kNone, 2, kNone, 2)
AETHER_LINEAR_MANY_HALF(int8_any, 8, kAny, 2, kAny, 2)
AETHER_LINEAR_MANY_HALF(int4, 4, kNone, AETHER_FEW_BLOCKS, kNone, 2)
AETHER_LINEAR_MANY_HALF(int4_any, 4, kAny, 3, kAny, 3)
AETHER_LINEAR_MANY_HALF(int2, 2, kAny, 3, kAny, 3)
AETHER_LINEAR_MANY_HALF(int1, 1, kAny, 3, kAny, 3)
AETHER_LINEAR_FEW(int4, 4, kNone, AETHER_FEW_BLOCKS)
AETHER_LINEAR_FEW(int4_zp, 4, kZeros, 2)
AETHER_LINEAR_FEW(int4_offset, 4, kOffsets, 2)
AETHER_LINEAR_FEW(int8, 8, kNone, 2)
AETHER_LINEAR_FEW(int8_zp, 8, kZeros, AETHER_FEW_BLOCKS - 1)
AETHER_LINEAR_FEW(int8_offset, 8, kOffsets, 2)
AETHER_LINEAR_FEW(int2, 2, kZeros, 2)
AETHER_LINEAR_FEW(int1, 1, kNone, AETHER_FEW_BLOCKS)
AETHER_LINEAR_GEMV_HALF(int4, 4, kNone, 320, 2)
AETHER_LINEAR_GEMV_HALF(int4_zp, 4, kZeros, 256, 2)
AETHER_LINEAR_GEMV_HALF(int4_offset, 4, kOffsets, 256, 2)
AETHER_LINEAR_GEMV_HALF(int2, 2, kZeros, 320, 2)
AETHER_LINEAR_GEMV_HALF(int1, 1, kNone, 320, 2)
