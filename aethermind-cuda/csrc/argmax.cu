// argmax: int32 index of the largest element, the lowest on ties. A block processes one row of x[R, W], or 32
// neighbours of the last dim of x[A, W, B].

#include "common/dependent_launch.cuh"
#include "common/row_order.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kColumnWarps = 8;

// Results 32 · blockIdx.x … + 31, one per lane. Warp w reduces elements w, w + the number of warps, and so on.
template <class T>
__device__ __forceinline__ void argmax_columns(int* index, const T* x, int num_results, int width, int inner) {
  __shared__ uint64_t partial[kColumnWarps][kWarpSize];
  const int result = static_cast<int>(blockIdx.x) * kWarpSize + lane_index();
  uint64_t largest = 0;
  if (result < num_results) {
    const T* first = x + static_cast<int64_t>(result / inner) * width * inner + result % inner;
    for (int i = warp_index(); i < width; i += kColumnWarps) {
      const uint64_t rank = rank_of(to_float(first[static_cast<int64_t>(i) * inner]), i);
      largest = rank > largest ? rank : largest;
    }
  }
  partial[warp_index()][lane_index()] = largest;
  __syncthreads();
  if (warp_index() == 0 && result < num_results) {
    for (int warp = 1; warp < kColumnWarps; ++warp) {
      const uint64_t rank = partial[warp][lane_index()];
      largest = rank > largest ? rank : largest;
    }
    index[result] = index_of(largest);
  }
}

}  // namespace aether

#define AETHER_ARGMAX(dtype)                                                                                        \
  extern "C" __global__ void argmax_##dtype(int* index, const aether::dtype* x, int width) {                        \
    aether::begin_kernel();                                                                                         \
    const int found = aether::row_argmax(x + static_cast<int64_t>(blockIdx.x) * width, width);                      \
    if (threadIdx.x == 0) {                                                                                         \
      index[blockIdx.x] = found;                                                                                    \
    }                                                                                                               \
  }                                                                                                                 \
  extern "C" __global__ void argmax_columns_##dtype(int* index, const aether::dtype* x, int num_results, int width, \
                                                    int inner) {                                                    \
    aether::begin_kernel();                                                                                         \
    aether::argmax_columns(index, x, num_results, width, inner);                                                    \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ARGMAX)
