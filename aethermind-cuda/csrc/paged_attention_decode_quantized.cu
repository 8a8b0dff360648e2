// Decode kernels of paged_attention_quantized (sequences with few queries, 8-bit cache) by dtype, head_dim and
// query rows of a tile (queries x query heads of a kv head): see common/paged_attention_decode.cuh.

#include "common/dependent_launch.cuh"
#include "common/paged_attention_decode.cuh"

// Two blocks per multiprocessor for tiles of 8 rows; the accumulators of 16 rows take twice the registers.
#define AETHER_DECODE(dtype, dim, rows)                                                       \
  extern "C" __global__ void __launch_bounds__(256, 16 / rows)                                \
      paged_attention_decode_quantized_##dtype##_##dim##_##rows(aether::AttentionCall call) { \
    aether::begin_kernel();                                                                   \
    aether::paged_attention_decode<aether::dtype, true, dim, rows>(call);                     \
  }

AETHER_DECODE(float16, 64, 8)
AETHER_DECODE(float16, 64, 16)
AETHER_DECODE(float16, 128, 8)
AETHER_DECODE(float16, 128, 16)
AETHER_DECODE(bfloat16, 64, 8)
AETHER_DECODE(bfloat16, 64, 16)
AETHER_DECODE(bfloat16, 128, 8)
AETHER_DECODE(bfloat16, 128, 16)
