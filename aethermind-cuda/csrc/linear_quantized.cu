// linear and lm_head: x · weightᵀ + bias, weights in codes (see common/coded_weight.cuh).
//
// Kernels of eight tokens are bound by memory, and by how many instructions a code takes: one is made for each kind of
// shift, and bounds let several blocks share a multiprocessor, whose loads are what is under way at a time.

#include "common/coded_weight.cuh"
#include "common/overlap.cuh"
#include "common/projection.cuh"

// Blocks that share a multiprocessor, where the compiler needs no more registers than that leaves to each.
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
    aether::project<aether::CodedWeight<aether::dtype, bits, aether::Shift::shift>, __VA_ARGS__>(                 \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                       \
        {{weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::Shift>(kind)}}, parts);   \
  }
#define AETHER_LINEAR_FEW(format, bits, shift, blocks)                                                \
  AETHER_LINEAR(linear_quantized_few8_##format, 256, blocks, project_few, bits, shift, float16, 1, 1) \
  AETHER_LINEAR(linear_quantized_few8_##format, 256, blocks, project_few, bits, shift, bfloat16, 1, 1)
#define AETHER_LINEAR_MANY(bits, blocks, dtype)                                                         \
  AETHER_LINEAR(linear_quantized_many16_int##bits, 128, blocks, project_many, bits, kAny, dtype, 16, 1) \
  AETHER_LINEAR(linear_quantized_many32_int##bits, 128, blocks, project_many, bits, kAny, dtype, 32, 1) \
  AETHER_LINEAR(linear_quantized_many64_int##bits, 128, 2, project_many, bits, kAny, dtype, 64, 1)
#define AETHER_LINEAR_BITS(bits, blocks)                                                         \
  AETHER_LINEAR(linear_quantized_few8_int##bits, 256, 1, project_few, bits, kAny, float32, 1, 1) \
  AETHER_LINEAR_MANY(bits, blocks, float16)                                                      \
  AETHER_LINEAR_MANY(bits, blocks, bfloat16)

AETHER_LINEAR_BITS(8, 2)
AETHER_LINEAR_BITS(4, 3)
AETHER_LINEAR_BITS(2, 3)
AETHER_LINEAR_BITS(1, 3)
AETHER_LINEAR_FEW(int4, 4, kNone, AETHER_FEW_BLOCKS)
AETHER_LINEAR_FEW(int4_zp, 4, kZeros, 2)
AETHER_LINEAR_FEW(int4_offset, 4, kOffsets, 2)
AETHER_LINEAR_FEW(int8, 8, kNone, 2)
AETHER_LINEAR_FEW(int8_zp, 8, kZeros, AETHER_FEW_BLOCKS - 1)
AETHER_LINEAR_FEW(int8_offset, 8, kOffsets, 2)
AETHER_LINEAR_FEW(int2, 2, kZeros, 2)
AETHER_LINEAR_FEW(int1, 1, kNone, AETHER_FEW_BLOCKS)
