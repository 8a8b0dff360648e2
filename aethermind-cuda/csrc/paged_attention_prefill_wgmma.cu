// Prefill kernels of paged_attention by wgmma: see common/paged_attention_wgmma.cuh.
//
// Targets: 90a

#include "common/dependent_launch.cuh"
#include "common/paged_attention_wgmma.cuh"

#define AETHER_PREFILL(dtype, dim)                                                \
  extern "C" __global__ void __launch_bounds__(256)                               \
      paged_attention_prefill_wgmma_##dtype##_##dim(aether::AttentionCall call) { \
    aether::begin_kernel();                                                       \
    aether::paged_attention_wgmma<aether::dtype, dim, 128>(call);                 \
  }

AETHER_PREFILL(float16, 64)
AETHER_PREFILL(float16, 128)
AETHER_PREFILL(bfloat16, 64)
AETHER_PREFILL(bfloat16, 128)
