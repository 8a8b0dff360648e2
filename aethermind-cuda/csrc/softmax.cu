// softmax: exp(x[R, W] - max(x)) divided by its sum over the last dim, in float32. A block processes one row; out may
// alias x.

#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

template <class T>
__device__ __forceinline__ void softmax(T* out, const T* x, int width) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  const int first = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
  float largest = Max::kNeutral;
  for (int i = first; i < width; i += step) {
    largest = fmaxf(largest, to_float(x[row + i]));
  }
  largest = block_reduce<Max>(largest);
  float sum = 0.0f;
  for (int i = first; i < width; i += step) {
    sum += expf(to_float(x[row + i]) - largest);
  }
  const float scale = 1.0f / block_reduce<Sum>(sum);
  for (int i = first; i < width; i += step) {
    out[row + i] = from_float<T>(expf(to_float(x[row + i]) - largest) * scale);
  }
}

}  // namespace aether

#define AETHER_SOFTMAX(dtype)                                                                         \
  extern "C" __global__ void softmax_##dtype(aether::dtype* out, const aether::dtype* x, int width) { \
    aether::begin_kernel();                                                                           \
    aether::softmax(out, x, width);                                                                   \
  }
AETHER_FOR_EACH_FLOAT(AETHER_SOFTMAX)
