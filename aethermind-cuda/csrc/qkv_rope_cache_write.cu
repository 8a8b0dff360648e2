// The epilogue of qkv_rope_cache_write and of its quantised form, after the projections: see common/projected_heads.cuh
// and common/wide_heads.cuh.

#include "common/dependent_launch.cuh"
#include "common/projected_heads.cuh"
#include "common/wide_heads.cuh"

namespace aether {

template <class T, bool kIsQuantized>
__device__ __forceinline__ void qkv_epilogue(const ProjectedHeads& call) {
  if (call.log2_lanes >= 0) {
    qkv_epilogue_wide<T, kIsQuantized>(call);
  } else {
    qkv_epilogue_per_warp<T, kIsQuantized>(call);
  }
}

}  // namespace aether

#define AETHER_QKV(dtype)                                                                          \
  extern "C" __global__ void qkv_rope_cache_write_##dtype(aether::ProjectedHeads call) {           \
    aether::begin_kernel();                                                                        \
    aether::qkv_epilogue<aether::dtype, false>(call);                                              \
  }                                                                                                \
  extern "C" __global__ void qkv_rope_cache_write_quantized_##dtype(aether::ProjectedHeads call) { \
    aether::begin_kernel();                                                                        \
    aether::qkv_epilogue<aether::dtype, true>(call);                                               \
  }
AETHER_FOR_EACH_FLOAT(AETHER_QKV)
