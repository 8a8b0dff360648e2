// kv_cache_write_quantized: quantises k and v[T, K, C] of a step to int8 or float8_e4m3fn in their slots of the paged
// cache, with a float32 scale per row. A warp processes a head of a token; blockIdx.y is 0 for keys and 1 for values.

#include "common/dependent_launch.cuh"
#include "common/head_row.cuh"
#include "common/paged_cache.cuh"
#include "common/types.cuh"

namespace aether {

template <class T>
__device__ __forceinline__ void kv_cache_write_quantized(uint8_t* k_cache, uint8_t* v_cache, float* k_scale,
                                                         float* v_scale, const T* k, const T* v,
                                                         const int64_t* slot_mapping, int num_rows, int num_kv_heads,
                                                         int block_size, int head_dim, int code_type) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / kWarpSize)) + warp_index();
  if (row >= num_rows) {
    return;
  }
  const int64_t slot = slot_mapping[row / num_kv_heads];
  if (slot < 0) {
    return;
  }
  const bool is_value = blockIdx.y == 1;
  const T* source = (is_value ? v : k) + static_cast<int64_t>(row) * head_dim;
  HeadRow values(head_dim, /*rotary_dim=*/head_dim, /*is_interleaved=*/false);  // no rotation: any pairing works
  values.read([&](int i) { return to_float(source[i]); });
  const int64_t target = row_of_slot(slot, row % num_kv_heads, num_kv_heads, block_size);
  uint8_t* codes = (is_value ? v_cache : k_cache) + target * head_dim;
  const float scale = values.write_codes(codes, static_cast<CodeType>(code_type));
  if (lane_index() == 0) {
    (is_value ? v_scale : k_scale)[target] = scale;
  }
}

}  // namespace aether

#define AETHER_KV_CACHE_WRITE_QUANTIZED(dtype)                                                                       \
  extern "C" __global__ void kv_cache_write_quantized_##dtype(                                                       \
      uint8_t* k_cache, uint8_t* v_cache, float* k_scale, float* v_scale, const aether::dtype* k,                    \
      const aether::dtype* v, const int64_t* slot_mapping, int num_rows, int num_kv_heads, int block_size,           \
      int head_dim, int code_type) {                                                                                 \
    aether::begin_kernel();                                                                                          \
    aether::kv_cache_write_quantized(k_cache, v_cache, k_scale, v_scale, k, v, slot_mapping, num_rows, num_kv_heads, \
                                     block_size, head_dim, code_type);                                               \
  }
AETHER_FOR_EACH_FLOAT(AETHER_KV_CACHE_WRITE_QUANTIZED)
