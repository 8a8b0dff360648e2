// linear and lm_head: x · weightᵀ + bias, weights in codes (see common/coded_weight.cuh).

#include "common/coded_weight.cuh"
#include "common/overlap.cuh"
#include "common/projection.cuh"

#define AETHER_LINEAR(name, project, bits, dtype, ...)                                                     \
  extern "C" __global__ void __launch_bounds__(256, 1) name##_int##bits##_##dtype(                         \
      void* out, const aether::dtype* x, const uint8_t* weight, const aether::dtype* bias, int num_tokens, \
      int num_outputs, int num_inputs, int is_float32, int num_blocks, int log2_chunks, int shift) {       \
    aether::begin_kernel();                                                                                \
    aether::project<aether::CodedWeight<aether::dtype, bits>, __VA_ARGS__>(                                \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, {x, num_tokens, num_inputs},                \
        {{weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::Shift>(shift)}});  \
  }
#define AETHER_LINEAR_FLOAT(dtype, bits) AETHER_LINEAR(linear_quantized_few8, project_few, bits, dtype, 1, 1)
#define AETHER_LINEAR_HALF(dtype, bits) \
  AETHER_LINEAR_FLOAT(dtype, bits)      \
  AETHER_LINEAR(linear_quantized_many, project_many, bits, dtype, 1)
#define AETHER_LINEAR_BITS(bits)     \
  AETHER_LINEAR_FLOAT(float32, bits) \
  AETHER_LINEAR_HALF(float16, bits)  \
  AETHER_LINEAR_HALF(bfloat16, bits)

AETHER_LINEAR_BITS(8)
AETHER_LINEAR_BITS(4)
AETHER_LINEAR_BITS(2)
AETHER_LINEAR_BITS(1)
