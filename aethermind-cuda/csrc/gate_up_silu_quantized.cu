// gate_up_silu: silu(x · w_gateᵀ) · (x · w_upᵀ) with quantised weights of one format (see common/quantized_weight.cuh).
// Kernels and launch bounds are chosen as in linear_quantized.cu.

#include "common/overlap.cuh"
#include "common/projection.cuh"
#include "common/quantized_weight.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define AETHER_FEW_BLOCKS 2
#else
#define AETHER_FEW_BLOCKS 1
#endif

#define AETHER_GATE_UP(name, threads, blocks, project, bits, shift, dtype, ...)                                     \
  extern "C" __global__ void __launch_bounds__(threads, blocks)                                                     \
      name##_##dtype(void* out, const aether::dtype* x, const uint8_t* w_gate, const uint8_t* w_up, int num_tokens, \
                     int num_outputs, int num_inputs, int num_blocks, int log2_chunks, int kind, float* parts) {    \
    aether::begin_kernel();                                                                                         \
    const auto any = static_cast<aether::Shift>(kind);                                                              \
    aether::project<aether::QuantizedWeight<aether::dtype, bits, aether::Shift::shift>, __VA_ARGS__>(               \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                                \
        {{w_gate, num_outputs, num_inputs, num_blocks, log2_chunks, any},                                           \
         {w_up, num_outputs, num_inputs, num_blocks, log2_chunks, any}},                                            \
        parts);                                                                                                     \
  }
#define AETHER_GATE_UP_FEW(format, bits, shift, blocks)                                                         \
  AETHER_GATE_UP(gate_up_silu_quantized_few8_##format, 256, blocks, project_skinny, bits, shift, float16, 1, 2) \
  AETHER_GATE_UP(gate_up_silu_quantized_few8_##format, 256, blocks, project_skinny, bits, shift, bfloat16, 1, 2)
// A kernel compiled for one affine term has no branches between products, but needs more registers.
#define AETHER_GATE_UP_MANY(format, bits, shift16, blocks16, shift32, blocks32, dtype)                              \
  AETHER_GATE_UP(gate_up_silu_quantized_many16_##format, 128, blocks16, project_large, bits, shift16, dtype, 16, 2) \
  AETHER_GATE_UP(gate_up_silu_quantized_many32_##format, 128, blocks32, project_large, bits, shift32, dtype, 32, 2) \
  AETHER_GATE_UP(gate_up_silu_quantized_many64_##format, 128, 2, project_large, bits, kAny, dtype, 64, 2)
#define AETHER_GATE_UP_MANY_HALF(format, bits, shift16, blocks16, shift32, blocks32) \
  AETHER_GATE_UP_MANY(format, bits, shift16, blocks16, shift32, blocks32, float16)   \
  AETHER_GATE_UP_MANY(format, bits, shift16, blocks16, shift32, blocks32, bfloat16)
#define AETHER_GATE_UP_FLOAT(bits) \
  AETHER_GATE_UP(gate_up_silu_quantized_few8_int##bits, 256, 1, project_skinny, bits, kAny, float32, 1, 2)

AETHER_GATE_UP_FLOAT(8)
AETHER_GATE_UP_FLOAT(4)
AETHER_GATE_UP_FLOAT(2)
AETHER_GATE_UP_FLOAT(1)
AETHER_GATE_UP_MANY_HALF(int8, 8, kNone, 2, kNone, 2)
AETHER_GATE_UP_MANY_HALF(int8_any, 8, kAny, 2, kAny, 2)
AETHER_GATE_UP_MANY_HALF(int4, 4, kNone, AETHER_FEW_BLOCKS + 1, kAny, 3)
AETHER_GATE_UP_MANY_HALF(int4_any, 4, kAny, 3, kAny, 3)
AETHER_GATE_UP_MANY_HALF(int2, 2, kAny, 3, kAny, 3)
AETHER_GATE_UP_MANY_HALF(int1, 1, kAny, 3, kAny, 3)
AETHER_GATE_UP_FEW(int4, 4, kNone, 2)
AETHER_GATE_UP_FEW(int4_zp, 4, kZeros, AETHER_FEW_BLOCKS)
AETHER_GATE_UP_FEW(int4_offset, 4, kOffsets, 1)
AETHER_GATE_UP_FEW(int8, 8, kNone, 2)
AETHER_GATE_UP_FEW(int8_zp, 8, kZeros, 1)
AETHER_GATE_UP_FEW(int8_offset, 8, kOffsets, 1)
AETHER_GATE_UP_FEW(int2, 2, kZeros, AETHER_FEW_BLOCKS)
AETHER_GATE_UP_FEW(int1, 1, kNone, 2)
