// qkv_rope_cache_write of few tokens in one launch: weights of up to four bits, heads that rotate as a whole without
// norms, and a cache that is not quantised. Blocks have pairs of tiles, ordered q, k, v (see common/rotated_heads.cuh).

#include "common/dependent_launch.cuh"
#include "common/quantized_gemv.cuh"
#include "common/quantized_weight.cuh"
#include "common/rotated_heads.cuh"

namespace aether {

// The layout of `_RotatedProjection` in kernels/_qkv_projection.py. Arrays are indexed by q, k, v.
struct RotatedProjection {
  void* outputs[3];  // queries [T, H, C], then the caches [N, K, P, C]
  const void* weights[3];
  const void* biases[3];  // may be null
  const void* x;          // [T, D]
  const float* rope_table;
  const int64_t* slot_mapping;
  int num_tokens;
  int num_inputs;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int block_size;
  int num_blocks;
  int log2_chunks;
  int term;
};

template <class T, int kBits, AffineTerm kTerm>
__device__ __forceinline__ void project_rotated(const RotatedProjection& call) {
  const int pairs_of_head = call.head_dim / (2 * kTileOutputs);
  const int query_pairs = call.num_heads * pairs_of_head, key_pairs = call.num_kv_heads * pairs_of_head;
  const int block = static_cast<int>(blockIdx.y);
  const bool is_query = block < query_pairs, is_key = !is_query && block < query_pairs + key_pairs;
  // Selected by conditions: a dynamic index would copy the arguments to local memory.
  const auto select = [&](auto* const(&of)[3]) { return is_query ? of[0] : is_key ? of[1] : of[2]; };
  const int pair = block - (is_query ? 0 : is_key ? query_pairs : query_pairs + key_pairs);
  const int num_heads = is_query ? call.num_heads : call.num_kv_heads;
  const RotatedHeads<T> heads{static_cast<T*>(select(call.outputs)),
                              static_cast<const T*>(select(call.biases)),
                              is_query || is_key ? call.rope_table : nullptr,
                              is_query ? nullptr : call.slot_mapping,
                              call.num_tokens,
                              num_heads,
                              call.head_dim,
                              call.block_size};
  const typename QuantizedWeight<T, kBits, kTerm>::Params weight{static_cast<const uint8_t*>(select(call.weights)),
                                                                 num_heads * call.head_dim,
                                                                 call.num_inputs,
                                                                 call.num_blocks,
                                                                 call.log2_chunks,
                                                                 static_cast<AffineTerm>(call.term)};
  quantized_gemv_of_tiles<T, kBits, kTerm, 2>(
      {static_cast<const T*>(call.x), call.num_tokens, call.num_inputs}, {weight, weight},
      {heads.first_tile(pair), heads.second_tile(pair)},
      [&](const auto& accumulators, auto* sums, int token) { heads.store(accumulators, sums, token, pair); });
}

}  // namespace aether

#define AETHER_QKV_ROPE(format, bits, term, dtype)                                                         \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                     \
      qkv_rope_quantized_gemv_##format##_##dtype(const __grid_constant__ aether::RotatedProjection call) { \
    aether::project_rotated<aether::dtype, bits, aether::AffineTerm::term>(call);                          \
  }
#define AETHER_QKV_ROPE_HALF(format, bits, term) \
  AETHER_QKV_ROPE(format, bits, term, float16)   \
  AETHER_QKV_ROPE(format, bits, term, bfloat16)
AETHER_QKV_ROPE_HALF(int4, 4, kNone)
AETHER_QKV_ROPE_HALF(int4_zp, 4, kZeroPoints)
AETHER_QKV_ROPE_HALF(int4_offset, 4, kOffsets)
AETHER_QKV_ROPE_HALF(int2, 2, kZeroPoints)
AETHER_QKV_ROPE_HALF(int1, 1, kNone)
