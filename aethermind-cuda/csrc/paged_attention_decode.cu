// Decode kernels of paged_attention (sequences with few queries, unquantised cache) by dtype, head_dim and tile rows:
// see common/paged_attention_decode.cuh.

#include "common/dependent_launch.cuh"
#include "common/paged_attention_decode.cuh"

// Two blocks per multiprocessor for tiles of 8 rows; the accumulators of 16 rows or wide heads take twice the
// registers.
#define AETHER_DECODE(dtype, dim, rows)                                             \
  extern "C" __global__ void __launch_bounds__(256, dim > 128 ? 1 : 16 / rows)      \
      paged_attention_decode_##dtype##_##dim##_##rows(aether::AttentionCall call) { \
    aether::begin_kernel();                                                         \
    aether::paged_attention_decode<aether::dtype, false, dim, rows>(call);          \
  }

AETHER_DECODE(float16, 64, 8)
AETHER_DECODE(float16, 64, 16)
AETHER_DECODE(float16, 96, 8)
AETHER_DECODE(float16, 96, 16)
AETHER_DECODE(float16, 128, 8)
AETHER_DECODE(float16, 128, 16)
AETHER_DECODE(float16, 256, 8)
AETHER_DECODE(float16, 256, 16)
AETHER_DECODE(bfloat16, 64, 8)
AETHER_DECODE(bfloat16, 64, 16)
AETHER_DECODE(bfloat16, 96, 8)
AETHER_DECODE(bfloat16, 96, 16)
AETHER_DECODE(bfloat16, 128, 8)
AETHER_DECODE(bfloat16, 128, 16)
AETHER_DECODE(bfloat16, 256, 8)
AETHER_DECODE(bfloat16, 256, 16)
