// sum, mean, prod, max and min in float32: over the last dim of x[R, W], a block for each row; over other dims a block
// for each result where the innermost dim is reduced, and for 32 neighbours where it is kept. The order of the terms
// depends on the reduced dims only.

#include "common/dependent_launch.cuh"
#include "common/loops.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

struct Prod {
  static constexpr float kNeutral = 1.0f;
  __device__ __forceinline__ static float combine(float a, float b) { return a * b; }
};

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

// Result blockIdx.x from `count` elements.
template <class Operation, class T>
__device__ __forceinline__ float reduce_dims(const T* x, const Loops<1>& kept, const Loops<1>& reduced, int count) {
  const T* first = x + offsets_of(kept, blockIdx.x).of[0];
  float value = Operation::kNeutral;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    value = Operation::combine(value, to_float(first[offsets_of(reduced, i).of[0]]));
  }
  return block_reduce<Operation>(value);
}

constexpr int kColumnWarps = 8;

// Results 32 · blockIdx.x … + 31, one per lane. Warp w reduces elements w, w + the number of warps, and so on.
template <class Operation, class T>
__device__ __forceinline__ void reduce_columns(T* out, const T* x, const Loops<1>& kept, const Loops<1>& reduced,
                                               int num_results, int count, float divisor) {
  __shared__ float partial[kColumnWarps][kWarpSize];
  const int result = static_cast<int>(blockIdx.x) * kWarpSize + lane_index();
  float value = Operation::kNeutral;
  if (result < num_results) {
    const T* first = x + offsets_of(kept, result).of[0];
    for (int i = warp_index(); i < count; i += kColumnWarps) {
      value = Operation::combine(value, to_float(first[offsets_of(reduced, i).of[0]]));
    }
  }
  partial[warp_index()][lane_index()] = value;
  __syncthreads();
  if (warp_index() == 0 && result < num_results) {
    for (int warp = 1; warp < kColumnWarps; ++warp) {
      value = Operation::combine(value, partial[warp][lane_index()]);
    }
    out[result] = from_float<T>(value / divisor);
  }
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
#define AETHER_REDUCTION_OF_DIMS(name, operation, dtype)                                                          \
  extern "C" __global__ void reductions_##name##_dims_##dtype(aether::dtype* out, const aether::dtype* x,         \
                                                              aether::Loops<1> kept, aether::Loops<1> reduced,    \
                                                              int count, float divisor) {                         \
    aether::begin_kernel();                                                                                       \
    aether::write_once(out, aether::reduce_dims<aether::operation>(x, kept, reduced, count) / divisor);           \
  }                                                                                                               \
  extern "C" __global__ void reductions_##name##_columns_##dtype(aether::dtype* out, const aether::dtype* x,      \
                                                                 aether::Loops<1> kept, aether::Loops<1> reduced, \
                                                                 int num_results, int count, float divisor) {     \
    aether::begin_kernel();                                                                                       \
    aether::reduce_columns<aether::operation>(out, x, kept, reduced, num_results, count, divisor);                \
  }
#define AETHER_REDUCTIONS(dtype)              \
  AETHER_REDUCTION(sum, Sum, dtype, 1)        \
  AETHER_REDUCTION(mean, Sum, dtype, width)   \
  AETHER_REDUCTION(prod, Prod, dtype, 1)      \
  AETHER_REDUCTION(max, Max, dtype, 1)        \
  AETHER_REDUCTION(min, Min, dtype, 1)        \
  AETHER_REDUCTION_OF_DIMS(sum, Sum, dtype)   \
  AETHER_REDUCTION_OF_DIMS(prod, Prod, dtype) \
  AETHER_REDUCTION_OF_DIMS(max, Max, dtype)   \
  AETHER_REDUCTION_OF_DIMS(min, Min, dtype)
AETHER_FOR_EACH_FLOAT(AETHER_REDUCTIONS)
