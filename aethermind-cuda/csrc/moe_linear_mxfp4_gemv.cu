// The products of moe_linear and moe_gate_up_silu of few pairs with weights in mxfp4: see common/mxfp4_gemv.cuh.

#include "common/dependent_launch.cuh"
#include "common/mxfp4_gemv.cuh"

#define AETHER_EXPERTS(operator_, weights, min_blocks, dtype)                                           \
  extern "C" __global__ void __launch_bounds__(256, min_blocks)                                         \
      operator_##_mxfp4_gemv_##dtype(aether::ExpertProducts call, aether::GatedActivation activation) { \
    aether::begin_kernel();                                                                             \
    aether::multiply_experts_mxfp4_gemv<aether::dtype, weights>(call, activation);                      \
  }
AETHER_EXPERTS(moe_linear, 1, 2, float16)
AETHER_EXPERTS(moe_linear, 1, 3, bfloat16)
AETHER_EXPERTS(moe_gate_up_silu, 2, 2, float16)
AETHER_EXPERTS(moe_gate_up_silu, 2, 3, bfloat16)
