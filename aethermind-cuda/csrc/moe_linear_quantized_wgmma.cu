// The products of moe_linear and moe_gate_up_silu with weights of 8 and 4 bits by wgmma: see
// common/expert_quantized_wgmma.cuh.
//
// Targets: 90a

#include "common/dependent_launch.cuh"
#include "common/expert_quantized_wgmma.cuh"

#define AETHER_EXPERTS(operator_, is_gated, columns, format, bits, term, dtype)                                       \
  extern "C" __global__ void __launch_bounds__(aether::kExpertThreads, 1)                                             \
      operator_##_quantized_wgmma##columns##_##format##_##dtype(aether::ExpertProducts call,                          \
                                                                aether::GatedActivation activation) {                 \
    aether::begin_kernel();                                                                                           \
    aether::multiply_experts_quantized<aether::dtype, bits, aether::AffineTerm::term, columns, is_gated>(call,        \
                                                                                                         activation); \
  }
#define AETHER_EXPERTS_OF(columns, format, bits, term, dtype)           \
  AETHER_EXPERTS(moe_linear, false, columns, format, bits, term, dtype) \
  AETHER_EXPERTS(moe_gate_up_silu, true, columns, format, bits, term, dtype)
#define AETHER_EXPERTS_COLUMNS(format, bits, term, dtype) \
  AETHER_EXPERTS_OF(16, format, bits, term, dtype)        \
  AETHER_EXPERTS_OF(32, format, bits, term, dtype)        \
  AETHER_EXPERTS_OF(64, format, bits, term, dtype)
#define AETHER_EXPERTS_HALF(format, bits, term)       \
  AETHER_EXPERTS_COLUMNS(format, bits, term, float16) \
  AETHER_EXPERTS_COLUMNS(format, bits, term, bfloat16)
AETHER_EXPERTS_HALF(int4, 4, kNone)
AETHER_EXPERTS_HALF(int4_zp, 4, kZeroPoints)
AETHER_EXPERTS_HALF(int4_offset, 4, kOffsets)
AETHER_EXPERTS_HALF(int8, 8, kNone)
