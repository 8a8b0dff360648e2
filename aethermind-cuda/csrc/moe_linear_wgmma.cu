// The products of moe_linear and moe_gate_up_silu with 16-bit weights by wgmma: see common/expert_wgmma.cuh.
//
// Targets: 90a

#include "common/dependent_launch.cuh"
#include "common/expert_wgmma.cuh"

#define AETHER_EXPERTS(dtype)                                                                       \
  extern "C" __global__ void __launch_bounds__(256, 2) moe_linear_wgmma_##dtype(                    \
      aether::ExpertProducts call, aether::GatedActivation activation, aether::ExpertRange range) { \
    aether::begin_kernel();                                                                         \
    aether::multiply_experts_wgmma<aether::dtype, false>(call, activation, range);                  \
  }                                                                                                 \
  extern "C" __global__ void __launch_bounds__(256, 2) moe_gate_up_silu_wgmma_##dtype(              \
      aether::ExpertProducts call, aether::GatedActivation activation, aether::ExpertRange range) { \
    aether::begin_kernel();                                                                         \
    aether::multiply_experts_wgmma<aether::dtype, true>(call, activation, range);                   \
  }
AETHER_EXPERTS(float16)
AETHER_EXPERTS(bfloat16)
