// Combine kernels of paged_attention and paged_attention_quantized by output dtype and head_dim: see
// common/paged_attention_combine.cuh.

#include "common/dependent_launch.cuh"
#include "common/paged_attention_combine.cuh"

#define AETHER_COMBINE(dtype, dim)                                          \
  extern "C" __global__ void __launch_bounds__(128, 4)                      \
      paged_attention_combine_##dtype##_##dim(aether::AttentionCall call) { \
    aether::begin_kernel();                                                 \
    aether::paged_attention_combine<aether::dtype, dim>(call);              \
  }

AETHER_COMBINE(float16, 64)
AETHER_COMBINE(float16, 96)
AETHER_COMBINE(float16, 128)
AETHER_COMBINE(float16, 256)
AETHER_COMBINE(bfloat16, 64)
AETHER_COMBINE(bfloat16, 96)
AETHER_COMBINE(bfloat16, 128)
AETHER_COMBINE(bfloat16, 256)
