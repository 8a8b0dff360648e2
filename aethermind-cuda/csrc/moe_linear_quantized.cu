// The products of moe_linear and moe_gate_up_silu with quantised weights of 8 and 4 bits (see
// common/quantized_weight.cuh and common/expert_products.cuh). One kernel for all affine terms.

#include "common/dependent_launch.cuh"
#include "common/expert_products.cuh"
#include "common/quantized_weight.cuh"

namespace aether {

template <class WeightTile>
__device__ __forceinline__ auto quantized_params(const ExpertProducts& call) {
  return [&call](const void* weight, int num_outputs) {
    return typename WeightTile::Params{static_cast<const uint8_t*>(weight),
                                       num_outputs,
                                       call.num_inputs,
                                       call.num_blocks,
                                       call.log2_chunks,
                                       AffineTerm{call.term}};
  };
}

}  // namespace aether

#define AETHER_EXPERTS(kind, project, threads, min_blocks, bits, dtype)                        \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks)                            \
      moe_linear_quantized_##kind##_int##bits##_##dtype(aether::ExpertProducts call) {         \
    aether::begin_kernel();                                                                    \
    using Weight = aether::QuantizedWeight<aether::dtype, bits, aether::AffineTerm::kRuntime>; \
    aether::project<Weight>(call, aether::quantized_params<Weight>(call));                     \
  }
#define AETHER_EXPERTS_HALF(bits, dtype)                               \
  AETHER_EXPERTS(skinny8, project_experts_skinny, 256, 1, bits, dtype) \
  AETHER_EXPERTS(tiled, project_experts_tiled, 128, 2, bits, dtype)
#define AETHER_EXPERTS_BITS(bits)                                        \
  AETHER_EXPERTS(skinny8, project_experts_skinny, 256, 1, bits, float32) \
  AETHER_EXPERTS_HALF(bits, float16)                                     \
  AETHER_EXPERTS_HALF(bits, bfloat16)
AETHER_EXPERTS_BITS(8)
AETHER_EXPERTS_BITS(4)
