// The QKV projections of qkv_rope_cache_write for few tokens, with weights in fp8 (see common/float8_weight.cuh), in
// one launch: see common/qkv_projection.cuh.

#include "common/dependent_launch.cuh"
#include "common/float8_weight.cuh"
#include "common/qkv_projection.cuh"

#define AETHER_QKV_GEMV(dtype)                                           \
  extern "C" __global__ void __launch_bounds__(256, 3)                   \
      qkv_projection_float8_gemv_##dtype(aether::QkvProjection call) {   \
    aether::project_qkv_gemv<aether::Float8Weight<aether::dtype>>(call); \
  }

extern "C" __global__ void __launch_bounds__(256, 1) qkv_projection_float8_skinny8_float32(aether::QkvProjection call) {
  aether::begin_kernel();
  aether::project_qkv<aether::Float8Weight<float>, 1>(call, [&](const void* weight, int num_outputs) {
    return aether::Float8Weight<float>::Params{static_cast<const uint8_t*>(weight), num_outputs, call.num_inputs};
  });
}
AETHER_QKV_GEMV(float16)
AETHER_QKV_GEMV(bfloat16)
