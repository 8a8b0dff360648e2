// Prefill kernels of paged_attention (sequences with many queries, unquantised cache) by dtype and head_dim: see
// common/paged_attention_prefill.cuh.

#include "common/dependent_launch.cuh"
#include "common/paged_attention_prefill.cuh"

#define AETHER_PREFILL(dtype, dim)                                           \
  extern "C" __global__ void __launch_bounds__(aether::kPrefillThreads<dim>) \
      paged_attention_prefill_##dtype##_##dim(aether::AttentionCall call) {  \
    aether::begin_kernel();                                                  \
    aether::paged_attention_prefill<aether::dtype, false, dim>(call);        \
  }

AETHER_PREFILL(float16, 64)
AETHER_PREFILL(float16, 96)
AETHER_PREFILL(float16, 128)
AETHER_PREFILL(float16, 256)
AETHER_PREFILL(bfloat16, 64)
AETHER_PREFILL(bfloat16, 96)
AETHER_PREFILL(bfloat16, 128)
AETHER_PREFILL(bfloat16, 256)
