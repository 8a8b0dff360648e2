// The products of moe_linear and moe_gate_up_silu of many pairs with weights in mxfp4: see common/mxfp4_wgmma.cuh.
//
// Targets: 90a

#include "common/dependent_launch.cuh"
#include "common/mxfp4_wgmma.cuh"

#define AETHER_EXPERTS(pairs, min_blocks)                                                          \
  extern "C" __global__ void __launch_bounds__(256, min_blocks) moe_linear_mxfp4_##pairs(          \
      aether::ExpertProducts call, aether::GatedActivation activation, uint32_t code_pieces) {     \
    aether::begin_kernel();                                                                        \
    aether::multiply_experts_mxfp4<aether::bfloat16, pairs, false>(call, activation, code_pieces); \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(256, min_blocks) moe_gate_up_silu_mxfp4_##pairs(    \
      aether::ExpertProducts call, aether::GatedActivation activation, uint32_t code_pieces) {     \
    aether::begin_kernel();                                                                        \
    aether::multiply_experts_mxfp4<aether::bfloat16, pairs, true>(call, activation, code_pieces);  \
  }
AETHER_EXPERTS(16, 3)
AETHER_EXPERTS(32, 2)
AETHER_EXPERTS(64, 2)
AETHER_EXPERTS(128, 2)
