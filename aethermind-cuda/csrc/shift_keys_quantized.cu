// shift_keys_quantized: K-shift (see shift_keys.cu) of an 8-bit cache: dequantises, rotates and quantises again with a
// new scale per key.

#include "common/dependent_launch.cuh"
#include "common/head_row.cuh"
#include "common/memory.cuh"
#include "common/paged_cache.cuh"
#include "common/types.cuh"

extern "C" __global__ void shift_keys_quantized(uint8_t* k_cache, float* k_scale, const int* blocks,
                                                const int* num_tokens, const float* table, int num_blocks,
                                                int num_kv_heads, int block_size, int head_dim, int rotary_dim,
                                                int is_interleaved, int code_type) {
  aether::begin_kernel();
  using namespace aether;
  const int entry = static_cast<int>(blockIdx.x);
  const int index = static_cast<int>(blockIdx.y * (blockDim.x / kWarpSize)) + warp_index();
  const int head = index / block_size, offset = index % block_size;
  if (head >= num_kv_heads || offset >= num_tokens[entry]) {
    return;
  }
  const CodeType type = static_cast<CodeType>(code_type);
  const int block = checked_index(blocks[entry], num_blocks);
  const int64_t row = cache_row(block, offset, head, num_kv_heads, block_size);
  uint8_t* codes = k_cache + row * head_dim;
  HeadRow values(head_dim, rotary_dim, is_interleaved != 0);
  values.read([&](int i) { return code_value(codes[i], type); });
  values.rotate(table + static_cast<int64_t>(entry) * rotary_dim);
  const float scale = values.write_codes(codes, type);
  if (lane_index() == 0) {
    k_scale[row] *= scale;
  }
}
