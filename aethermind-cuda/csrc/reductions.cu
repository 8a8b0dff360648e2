// sum, mean, max and min over the last dim of x[R, W], in float32. A block processes one row.

#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

struct Min {
  static constexpr float kNeutral = __builtin_huge_valf();
  __device__ __forceinline__ static float combine(float a, float b) { return fminf(a, b); }
};

template <class Operation, class T>
__device__ __forceinline__ float reduce_row(const T* x, int width) {
  const T* row = x + static_cast<int64_t>(blockIdx.x) * width;
  float value = Operation::kNeutral;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x)) {
    value = Operation::combine(value, to_float(row[i]));
  }
  return block_reduce<Operation>(value);
}

template <class T>
__device__ __forceinline__ void write_once(T* out, float value) {
  if (threadIdx.x == 0) {
    out[blockIdx.x] = from_float<T>(value);
  }
}

}  // namespace aether

#define AETHER_REDUCTION(name, operation, dtype, divisor)                                                         \
  extern "C" __global__ void reductions_##name##_##dtype(aether::dtype* out, const aether::dtype* x, int width) { \
    aether::begin_kernel();                                                                                       \
    aether::write_once(out, aether::reduce_row<aether::operation>(x, width) / static_cast<float>(divisor));       \
  }
#define AETHER_REDUCTIONS(dtype)            \
  AETHER_REDUCTION(sum, Sum, dtype, 1)      \
  AETHER_REDUCTION(mean, Sum, dtype, width) \
  AETHER_REDUCTION(max, Max, dtype, 1)      \
  AETHER_REDUCTION(min, Min, dtype, 1)
AETHER_FOR_EACH_FLOAT(AETHER_REDUCTIONS)
