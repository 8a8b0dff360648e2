// mla_attention: latent attention and its combine kernel, by dtype and rows of a block: see
// common/latent_attention.cuh.

#include "common/dependent_launch.cuh"
#include "common/latent_attention.cuh"

#define AETHER_LATENT(dtype, rows, min_blocks)                                 \
  extern "C" __global__ void __launch_bounds__(256, min_blocks)                \
      mla_attention_##dtype##_##rows(aether::AttentionCall call, int stages) { \
    aether::begin_kernel();                                                    \
    aether::attend_latent<aether::dtype, rows>(call, stages);                  \
  }                                                                            \
  extern "C" __global__ void __launch_bounds__(128)                            \
      mla_attention_combine_##dtype##_##rows(aether::AttentionCall call) {     \
    aether::begin_kernel();                                                    \
    aether::combine_latent<aether::dtype, rows, aether::kLatentKeys>(call);    \
  }

AETHER_LATENT(float16, 16, 2)
AETHER_LATENT(float16, 64, 1)
AETHER_LATENT(bfloat16, 16, 2)
AETHER_LATENT(bfloat16, 64, 1)
