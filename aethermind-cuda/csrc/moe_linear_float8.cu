// The products of moe_linear, moe_gate_up_silu and linear_per_head with weights in fp8: see common/float8_weight.cuh
// and common/expert_products.cuh.

#include "common/dependent_launch.cuh"
#include "common/expert_products.cuh"
#include "common/float8_weight.cuh"

namespace aether {

template <class Weight>
__device__ __forceinline__ auto float8_params(const ExpertProducts& call) {
  return [&call](const void* weight, int num_outputs) {
    return typename Weight::Params{static_cast<const uint8_t*>(weight), num_outputs, call.num_inputs};
  };
}

}  // namespace aether

#define AETHER_EXPERTS(kind, project, bounds, num_chunks, dtype)                          \
  extern "C" __global__ void __launch_bounds__ bounds moe_linear_float8_##kind##_##dtype( \
      aether::ExpertProducts call) {                                                      \
    aether::begin_kernel();                                                               \
    using Weight = aether::Float8Weight<aether::dtype, num_chunks>;                       \
    aether::project<Weight>(call, aether::float8_params<Weight>(call));                   \
  }
#define AETHER_EXPERTS_HALF(dtype)                               \
  AETHER_EXPERTS(gemv, project_experts_gemv, (256, 2), 4, dtype) \
  AETHER_EXPERTS(tiled, project_experts_tiled, (128), 2, dtype)

AETHER_EXPERTS(skinny8, project_experts_skinny, (256, 1), 4, float32)
AETHER_EXPERTS_HALF(float16)
AETHER_EXPERTS_HALF(bfloat16)
