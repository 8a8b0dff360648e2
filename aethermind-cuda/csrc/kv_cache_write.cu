// kv_cache_write: copies k and v[T, K, C] of a step to their slots of the paged cache [N, K, P, C], in words of 16
// bytes, or of 2 or 4 where a head's size requires it. A thread copies one word of a key and of its value.
// latent_cache_write has keys only.

#include "common/dependent_launch.cuh"
#include "common/paged_cache.cuh"
#include "common/types.cuh"

namespace aether {

using word16 = uint16_t;
using word32 = uint32_t;
using word128 = uint4;

// `width` words per head, `num_words` of all tokens.
template <class Word>
__device__ __forceinline__ void kv_cache_write(Word* k_cache, Word* v_cache, const Word* k, const Word* v,
                                               const int64_t* slot_mapping, int64_t num_words, int num_kv_heads,
                                               int block_size, int width) {
  const int64_t word = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (word >= num_words) {
    return;
  }
  const int64_t row = word / width;
  const int64_t slot = slot_mapping[row / num_kv_heads];
  if (slot < 0) {
    return;
  }
  const int head = static_cast<int>(row % num_kv_heads);
  const int64_t target = row_of_slot(slot, head, num_kv_heads, block_size) * width + word % width;
  k_cache[target] = k[word];
  if (v != nullptr) {
    v_cache[target] = v[word];
  }
}

}  // namespace aether

#define AETHER_KV_CACHE_WRITE(Word)                                                                           \
  extern "C" __global__ void kv_cache_write_##Word(                                                           \
      aether::Word* k_cache, aether::Word* v_cache, const aether::Word* k, const aether::Word* v,             \
      const int64_t* slot_mapping, int64_t num_words, int num_kv_heads, int block_size, int width) {          \
    aether::begin_kernel();                                                                                   \
    aether::kv_cache_write(k_cache, v_cache, k, v, slot_mapping, num_words, num_kv_heads, block_size, width); \
  }
AETHER_KV_CACHE_WRITE(word16)
AETHER_KV_CACHE_WRITE(word32)
AETHER_KV_CACHE_WRITE(word128)
