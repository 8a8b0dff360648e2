// The products of moe_linear and moe_gate_up_silu with unquantised weights: see common/expert_products.cuh.

#include "common/dense_weight.cuh"
#include "common/dependent_launch.cuh"
#include "common/expert_products.cuh"

namespace aether {

template <class T>
__device__ __forceinline__ auto dense_params(const ExpertProducts& call) {
  return [&call](const void* weight, int num_outputs) {
    return typename DenseWeight<T>::Params{static_cast<const T*>(weight), num_outputs, call.num_inputs};
  };
}

}  // namespace aether

#define AETHER_EXPERTS_SKINNY(dtype)                                                                               \
  extern "C" __global__ void __launch_bounds__(256) moe_linear_skinny8_##dtype(aether::ExpertProducts call) {      \
    aether::begin_kernel();                                                                                        \
    aether::project_experts_skinny<aether::DenseWeight<aether::dtype>>(call,                                       \
                                                                       aether::dense_params<aether::dtype>(call)); \
  }
#define AETHER_EXPERTS_HALF(dtype)                                                                                     \
  extern "C" __global__ void __launch_bounds__(256, 2) moe_linear_gemv_##dtype(aether::ExpertProducts call) {          \
    aether::begin_kernel();                                                                                            \
    aether::project_experts_gemv<aether::DenseWeight<aether::dtype>>(call, aether::dense_params<aether::dtype>(call)); \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(128) moe_linear_tiled_##dtype(aether::ExpertProducts call) {            \
    aether::begin_kernel();                                                                                            \
    aether::project_experts_tiled<aether::DenseWeight<aether::dtype>>(call,                                            \
                                                                      aether::dense_params<aether::dtype>(call));      \
  }
AETHER_FOR_EACH_FLOAT(AETHER_EXPERTS_SKINNY)
AETHER_EXPERTS_HALF(float16)
AETHER_EXPERTS_HALF(bfloat16)
