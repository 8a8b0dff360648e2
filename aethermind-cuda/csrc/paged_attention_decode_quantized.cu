// paged_attention_quantized of sequences with few queries: see common/paged_attention_decode.cuh.

#include "common/overlap.cuh"
#include "common/paged_attention_decode.cuh"

#define AETHER_DECODE(dtype, dim)                                                    \
  extern "C" __global__ void __launch_bounds__(128, 2)                               \
      paged_attention_decode_quantized_##dtype##_##dim(aether::AttentionCall call) { \
    aether::begin_kernel();                                                          \
    aether::paged_attention_decode<aether::dtype, true, dim>(call);                  \
  }

AETHER_DECODE(float16, 64)
AETHER_DECODE(float16, 128)
AETHER_DECODE(bfloat16, 64)
AETHER_DECODE(bfloat16, 128)
