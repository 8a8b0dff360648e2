// shift_keys (llama.cpp's K-shift): rotates the keys in the first slots of the listed cache blocks by their block's
// angles, in place. A warp processes a head of a slot; blockIdx.x indexes the listed blocks.

#include "common/dependent_launch.cuh"
#include "common/head_row.cuh"
#include "common/memory.cuh"
#include "common/paged_cache.cuh"
#include "common/types.cuh"

namespace aether {

template <class T>
__device__ __forceinline__ void shift_keys(T* k_cache, const int* blocks, const int* num_tokens, const float* table,
                                           int num_blocks, int num_kv_heads, int block_size, int head_dim,
                                           int rotary_dim, int is_interleaved) {
  const int entry = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y * (blockDim.x / kWarpSize)) + warp_index();
  const int head = index / block_size, offset = index % block_size;
  if (head >= num_kv_heads || offset >= num_tokens[entry]) {
    return;
  }
  const int block = checked_index(blocks[entry], num_blocks);
  T* key = k_cache + cache_row(block, offset, head, num_kv_heads, block_size) * head_dim;
  HeadRow values(head_dim, rotary_dim, is_interleaved != 0);
  values.read([&](int i) { return to_float(key[i]); });
  values.rotate(table + static_cast<int64_t>(entry) * rotary_dim);
  values.write([&](int i, float value) { key[i] = from_float<T>(value); });
}

}  // namespace aether

#define AETHER_SHIFT_KEYS(dtype)                                                                                       \
  extern "C" __global__ void shift_keys_##dtype(aether::dtype* k_cache, const int* blocks, const int* num_tokens,      \
                                                const float* table, int num_blocks, int num_kv_heads, int block_size,  \
                                                int head_dim, int rotary_dim, int is_interleaved) {                    \
    aether::begin_kernel();                                                                                            \
    aether::shift_keys(k_cache, blocks, num_tokens, table, num_blocks, num_kv_heads, block_size, head_dim, rotary_dim, \
                       is_interleaved);                                                                                \
  }
AETHER_FOR_EACH_FLOAT(AETHER_SHIFT_KEYS)
