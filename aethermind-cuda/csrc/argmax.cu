// argmax: int32 index of the largest element of every row of x[R, W], the lowest on ties. A block processes one row.

#include "common/dependent_launch.cuh"
#include "common/row_order.cuh"
#include "common/types.cuh"

#define AETHER_ARGMAX(dtype)                                                                   \
  extern "C" __global__ void argmax_##dtype(int* index, const aether::dtype* x, int width) {   \
    aether::begin_kernel();                                                                    \
    const int found = aether::row_argmax(x + static_cast<int64_t>(blockIdx.x) * width, width); \
    if (threadIdx.x == 0) {                                                                    \
      index[blockIdx.x] = found;                                                               \
    }                                                                                          \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ARGMAX)
