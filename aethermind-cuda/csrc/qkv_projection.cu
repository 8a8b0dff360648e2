// The QKV projections of qkv_rope_cache_write for few tokens, with dense row-major weights, in one launch: see
// common/qkv_projection.cuh.

#include "common/dense_weight.cuh"
#include "common/dependent_launch.cuh"
#include "common/qkv_projection.cuh"

#define AETHER_QKV(name, dtype, tiles)                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 1) name##_##dtype(aether::QkvProjection call) {                 \
    aether::begin_kernel();                                                                                         \
    aether::project_qkv<aether::DenseWeight<aether::dtype>, tiles>(call, [&](const void* weight, int num_outputs) { \
      return aether::DenseWeight<aether::dtype>::Params{static_cast<const aether::dtype*>(weight), num_outputs,     \
                                                        call.num_inputs};                                           \
    });                                                                                                             \
  }
#define AETHER_QKV_GEMV(dtype)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256, 3) qkv_projection_gemv_##dtype(aether::QkvProjection call) { \
    aether::project_qkv_gemv<aether::DenseWeight<aether::dtype>>(call);                                          \
  }
#define AETHER_QKV_HALF(dtype)                 \
  AETHER_QKV_GEMV(dtype)                       \
  AETHER_QKV(qkv_projection_skinny8, dtype, 1) \
  AETHER_QKV(qkv_projection_skinny32, dtype, 4)

AETHER_QKV(qkv_projection_skinny8, float32, 1)
AETHER_QKV_HALF(float16)
AETHER_QKV_HALF(bfloat16)
