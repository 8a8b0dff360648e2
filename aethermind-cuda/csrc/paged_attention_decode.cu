// paged_attention of sequences with few queries, over a cache of elements: see common/paged_attention_decode.cuh.

#include "common/overlap.cuh"
#include "common/paged_attention_decode.cuh"

#define AETHER_DECODE(dtype, dim)                                          \
  extern "C" __global__ void __launch_bounds__(128)                        \
      paged_attention_decode_##dtype##_##dim(aether::AttentionCall call) { \
    aether::begin_kernel();                                                \
    aether::paged_attention_decode<aether::dtype, false, dim>(call);       \
  }

AETHER_DECODE(float16, 64)
AETHER_DECODE(float16, 96)
AETHER_DECODE(float16, 128)
AETHER_DECODE(bfloat16, 64)
AETHER_DECODE(bfloat16, 96)
AETHER_DECODE(bfloat16, 128)
