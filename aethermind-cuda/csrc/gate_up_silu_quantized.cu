// gate_up_silu: silu(x · w_gateᵀ) · (x · w_upᵀ), weights in codes (see common/coded_weight.cuh), both in one format.

#include "common/coded_weight.cuh"
#include "common/overlap.cuh"
#include "common/projection.cuh"

#define AETHER_GATE_UP(name, project, bits, dtype, ...)                                                               \
  extern "C" __global__ void __launch_bounds__(256, 1) name##_int##bits##_##dtype(                                    \
      void* out, const aether::dtype* x, const uint8_t* w_gate, const uint8_t* w_up, int num_tokens, int num_outputs, \
      int num_inputs, int num_blocks, int log2_chunks, int shift) {                                                   \
    aether::begin_kernel();                                                                                           \
    const auto kind = static_cast<aether::Shift>(shift);                                                              \
    aether::project<aether::CodedWeight<aether::dtype, bits>, __VA_ARGS__>(                                           \
        {out, nullptr, num_tokens, num_outputs, false}, {x, num_tokens, num_inputs},                                  \
        {{w_gate, num_outputs, num_inputs, num_blocks, log2_chunks, kind},                                            \
         {w_up, num_outputs, num_inputs, num_blocks, log2_chunks, kind}});                                            \
  }
#define AETHER_GATE_UP_FLOAT(dtype, bits) AETHER_GATE_UP(gate_up_silu_quantized_few8, project_few, bits, dtype, 1, 2)
#define AETHER_GATE_UP_HALF(dtype, bits) \
  AETHER_GATE_UP_FLOAT(dtype, bits)      \
  AETHER_GATE_UP(gate_up_silu_quantized_many, project_many, bits, dtype, 2)
#define AETHER_GATE_UP_BITS(bits)     \
  AETHER_GATE_UP_FLOAT(float32, bits) \
  AETHER_GATE_UP_HALF(float16, bits)  \
  AETHER_GATE_UP_HALF(bfloat16, bits)

AETHER_GATE_UP_BITS(8)
AETHER_GATE_UP_BITS(4)
AETHER_GATE_UP_BITS(2)
AETHER_GATE_UP_BITS(1)
