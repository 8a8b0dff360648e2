// The products of moe_linear, moe_gate_up_silu and linear_per_head with quantised weights of 8 and 4 bits (see
// common/quantized_weight.cuh and common/expert_products.cuh), and those of the first two with weights in mxfp4. One
// kernel for all affine terms.

#include "common/dependent_launch.cuh"
#include "common/expert_products.cuh"
#include "common/mxfp4_weight.cuh"
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

template <class T>
using Int8Weight = QuantizedWeight<T, 8, AffineTerm::kRuntime>;
template <class T>
using Int4Weight = QuantizedWeight<T, 4, AffineTerm::kRuntime>;

}  // namespace aether

#define AETHER_EXPERTS(kind, project, threads, min_blocks, codes, Weight, dtype)     \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks)                  \
      moe_linear_quantized_##kind##_##codes##_##dtype(aether::ExpertProducts call) { \
    aether::begin_kernel();                                                          \
    using Tile = aether::Weight<aether::dtype>;                                      \
    aether::project<Tile>(call, aether::quantized_params<Tile>(call));               \
  }
#define AETHER_EXPERTS_HALF(codes, Weight, dtype)                               \
  AETHER_EXPERTS(skinny8, project_experts_skinny, 256, 1, codes, Weight, dtype) \
  AETHER_EXPERTS(tiled, project_experts_tiled, 128, 2, codes, Weight, dtype)
#define AETHER_EXPERTS_CODES(codes, Weight)                                       \
  AETHER_EXPERTS(skinny8, project_experts_skinny, 256, 1, codes, Weight, float32) \
  AETHER_EXPERTS_HALF(codes, Weight, float16)                                     \
  AETHER_EXPERTS_HALF(codes, Weight, bfloat16)
AETHER_EXPERTS_CODES(int8, Int8Weight)
AETHER_EXPERTS_CODES(int4, Int4Weight)
AETHER_EXPERTS_CODES(mxfp4, Mxfp4Weight)
