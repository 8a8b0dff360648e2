// The projections of qkv_rope_cache_write for 9 to 128 tokens with quantised weights by wgmma: see
// common/quantized_wgmma.cuh. Blocks are ordered q, k, v; the sums of parts of K are those of q, then of k, then of v.
//
// Targets: 90a

#include "common/qkv_projection.cuh"
#include "common/quantized_wgmma.cuh"

namespace aether {

template <class T, int kBits, AffineTerm kTerm, int kColumns, int kThreads>
__device__ __forceinline__ void project_qkv_quantized_wgmma(const QkvProjection& call, int num_blocks, int log2_chunks,
                                                            float* partials) {
  const int block_outputs = static_cast<int>(blockDim.x) / kWarpSize * kTileOutputs;
  dispatch_qkv<T>(
      call,
      [&](const Results<T>& results, const Inputs<T>&, const void* weight, int block, int first_output) {
        quantized_wgmma<T, kBits, kTerm, kColumns, kThreads>(
            results, static_cast<const T*>(call.x), static_cast<const uint8_t*>(weight), nullptr, call.num_inputs,
            num_blocks, log2_chunks,
            partials + static_cast<int64_t>(first_output) * static_cast<int>(gridDim.z) * call.num_tokens, block);
      },
      block_outputs);
}

template <class T>
__device__ __forceinline__ void split_k_reduce_qkv(const QkvProjection& call, const float* partials, int num_splits) {
  dispatch_qkv<T>(
      call,
      [&](const Results<T>& results, const Inputs<T>&, const void*, int block, int first_output) {
        split_k_reduce<T, 1>(results, partials + static_cast<int64_t>(first_output) * num_splits * call.num_tokens,
                             num_splits, block, static_cast<int>(blockIdx.x));
      },
      static_cast<int>(blockDim.x));
}

}  // namespace aether

#define AETHER_QKV_WGMMA(columns, format, bits, term, dtype, threads)                                          \
  extern "C" __global__ void __launch_bounds__(threads, 1)                                                     \
      qkv_projection_quantized_wgmma##columns##_##format##_##dtype(aether::QkvProjection call, int num_blocks, \
                                                                   int log2_chunks, float* partials) {         \
    aether::project_qkv_quantized_wgmma<aether::dtype, bits, aether::AffineTerm::term, columns, threads>(      \
        call, num_blocks, log2_chunks, partials);                                                              \
  }
AETHER_EACH_QUANTIZED_WGMMA(AETHER_QKV_WGMMA)

#define AETHER_SPLIT_K_REDUCE_QKV(dtype)                                                              \
  extern "C" __global__ void __launch_bounds__(256)                                                   \
      split_k_reduce_qkv_##dtype(aether::QkvProjection call, const float* partials, int num_splits) { \
    aether::begin_kernel();                                                                           \
    aether::split_k_reduce_qkv<aether::dtype>(call, partials, num_splits);                            \
  }
AETHER_SPLIT_K_REDUCE_QKV(float16)
AETHER_SPLIT_K_REDUCE_QKV(bfloat16)
