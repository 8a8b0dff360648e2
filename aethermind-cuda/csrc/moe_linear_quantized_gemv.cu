// The products of moe_linear and moe_gate_up_silu of few pairs with weights of 8 and 4 bits: see
// common/expert_quantized_gemv.cuh.

#include "common/dependent_launch.cuh"
#include "common/expert_quantized_gemv.cuh"

#define AETHER_EXPERTS(operator_, weights, min_blocks, format, bits, term, dtype)                                      \
  extern "C" __global__ void __launch_bounds__(256, min_blocks)                                                        \
      operator_##_quantized_gemv_##format##_##dtype(aether::ExpertProducts call, aether::GatedActivation activation) { \
    aether::begin_kernel();                                                                                            \
    aether::multiply_experts_quantized_gemv<aether::dtype, bits, aether::AffineTerm::term, weights>(call, activation); \
  }
#define AETHER_EXPERTS_OF(min_blocks, format, bits, term, dtype)                     \
  AETHER_EXPERTS(moe_linear, 1, aether::kQuantizedBlocks, format, bits, term, dtype) \
  AETHER_EXPERTS(moe_gate_up_silu, 2, min_blocks, format, bits, term, dtype)
#define AETHER_EXPERTS_HALF(min_blocks, format, bits, term)  \
  AETHER_EXPERTS_OF(min_blocks, format, bits, term, float16) \
  AETHER_EXPERTS_OF(min_blocks, format, bits, term, bfloat16)
AETHER_EXPERTS_HALF(1, int8, 8, kNone)
AETHER_EXPERTS_HALF(aether::kQuantizedBlocks, int4, 4, kNone)
AETHER_EXPERTS_HALF(1, int4_zp, 4, kZeroPoints)
AETHER_EXPERTS_HALF(1, int4_offset, 4, kOffsets)
