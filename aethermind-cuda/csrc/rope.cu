// rope: rotary position embedding (Su et al. 2021) of x[T, H, C] with rope_table's cosines and sines [T, R],
// which rotate the first R elements of a head. A warp processes one head of a token.

#include "common/dependent_launch.cuh"
#include "common/head_row.cuh"
#include "common/types.cuh"

namespace aether {

// out may alias x.
template <class T>
__device__ __forceinline__ void rope(T* out, const T* x, const float* table, int num_rows, int num_heads, int head_dim,
                                     int rotary_dim, int is_interleaved) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / kWarpSize)) + warp_index();
  if (row >= num_rows) {
    return;
  }
  const int64_t begin = static_cast<int64_t>(row) * head_dim;
  HeadRow values(head_dim, rotary_dim, is_interleaved != 0);
  values.read([&](int i) { return to_float(x[begin + i]); });
  values.rotate(table + static_cast<int64_t>(row / num_heads) * rotary_dim);
  values.write([&](int i, float value) { out[begin + i] = from_float<T>(value); });
}

}  // namespace aether

#define AETHER_ROPE(dtype)                                                                                \
  extern "C" __global__ void rope_##dtype(aether::dtype* out, const aether::dtype* x, const float* table, \
                                          int num_rows, int num_heads, int head_dim, int rotary_dim,      \
                                          int is_interleaved) {                                           \
    aether::begin_kernel();                                                                               \
    aether::rope(out, x, table, num_rows, num_heads, head_dim, rotary_dim, is_interleaved);               \
  }
AETHER_FOR_EACH_FLOAT(AETHER_ROPE)
