// mla_attention by wgmma and its combine kernel: see common/latent_attention_wgmma.cuh.
//
// Targets: 90a

#include "common/dependent_launch.cuh"
#include "common/latent_attention_wgmma.cuh"

#define AETHER_LATENT(dtype)                                                                                          \
  extern "C" __global__ void __launch_bounds__(256, 1) mla_attention_wgmma_##dtype(aether::AttentionCall call) {      \
    aether::begin_kernel();                                                                                           \
    aether::attend_latent_wgmma<aether::dtype>(call);                                                                 \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(128) mla_attention_wgmma_combine_##dtype(aether::AttentionCall call) { \
    aether::begin_kernel();                                                                                           \
    aether::combine_latent<aether::dtype, 64, 64>(call);                                                              \
  }

AETHER_LATENT(float16)
AETHER_LATENT(bfloat16)
