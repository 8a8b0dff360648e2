// The projections of qkv_rope_cache_write for few tokens with quantised weights of one format (see
// common/quantized_weight.cuh). Kernels of up to eight tokens are compiled per affine term, as in linear_quantized.cu.

#include "common/overlap.cuh"
#include "common/qkv_projection.cuh"
#include "common/quantized_gemv.cuh"
#include "common/quantized_weight.cuh"

// Blocks per multiprocessor, where the compiler's register use allows it; as in linear_quantized.cu.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define AETHER_FEW_BLOCKS 3
#else
#define AETHER_FEW_BLOCKS 2
#endif

namespace aether {

template <class Source>
__device__ __forceinline__ void project_qkv_quantized_gemv(const QkvProjection& call, int num_blocks, int log2_chunks,
                                                           int kind) {
  using T = typename Source::Element;
  project_one_of<T>(call,
                    [&](const Results<T>& results, const Inputs<T>& x, const void* weight, int num_outputs, int tile) {
                      quantized_gemv<Source, 1>(results, x,
                                                {{static_cast<const uint8_t*>(weight), num_outputs, call.num_inputs,
                                                  num_blocks, log2_chunks, static_cast<Shift>(kind)}},
                                                tile);
                    });
}

}  // namespace aether

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define AETHER_GEMV_BLOCKS 1
#else
#define AETHER_GEMV_BLOCKS 2
#endif

#define AETHER_QKV(name, bits, shift, dtype, tiles, blocks)                                                            \
  extern "C" __global__ void __launch_bounds__(256, blocks)                                                            \
      name##_##dtype(aether::QkvProjection call, int num_blocks, int log2_chunks, int kind) {                          \
    aether::begin_kernel();                                                                                            \
    using Weight = aether::QuantizedWeight<aether::dtype, bits, aether::Shift::shift>;                                 \
    aether::project_qkv<Weight, tiles>(call, [&](const void* weight, int num_outputs) {                                \
      return Weight::Place{static_cast<const uint8_t*>(weight), num_outputs, call.num_inputs, num_blocks, log2_chunks, \
                           static_cast<aether::Shift>(kind)};                                                          \
    });                                                                                                                \
  }
#define AETHER_QKV_GEMV(format, bits, shift, dtype, threads, blocks)                                              \
  extern "C" __global__ void __launch_bounds__(threads, blocks) qkv_projection_quantized_gemv_##format##_##dtype( \
      aether::QkvProjection call, int num_blocks, int log2_chunks, int kind) {                                    \
    aether::project_qkv_quantized_gemv<aether::QuantizedWeight<aether::dtype, bits, aether::Shift::shift>>(       \
        call, num_blocks, log2_chunks, kind);                                                                     \
  }
#define AETHER_QKV_GEMV_HALF(format, bits, shift, threads, blocks) \
  AETHER_QKV_GEMV(format, bits, shift, float16, threads, blocks)   \
  AETHER_QKV_GEMV(format, bits, shift, bfloat16, threads, blocks)
#define AETHER_QKV_FEW(format, bits, shift, blocks)                                   \
  AETHER_QKV(qkv_projection_quantized_few8_##format, bits, shift, float16, 1, blocks) \
  AETHER_QKV(qkv_projection_quantized_few8_##format, bits, shift, bfloat16, 1, blocks)
#define AETHER_QKV_BITS(bits) AETHER_QKV(qkv_projection_quantized_few8_int##bits, bits, kAny, float32, 1, 1)

AETHER_QKV_BITS(8)
AETHER_QKV_BITS(4)
AETHER_QKV_BITS(2)
AETHER_QKV_BITS(1)
AETHER_QKV_FEW(int4, 4, kNone, AETHER_FEW_BLOCKS)
AETHER_QKV_FEW(int4_zp, 4, kZeros, 2)
AETHER_QKV_FEW(int4_offset, 4, kOffsets, 2)
AETHER_QKV_FEW(int8, 8, kNone, 2)
AETHER_QKV_FEW(int8_zp, 8, kZeros, 2)
AETHER_QKV_FEW(int8_offset, 8, kOffsets, 2)
AETHER_QKV_FEW(int2, 2, kZeros, AETHER_FEW_BLOCKS)
AETHER_QKV_FEW(int1, 1, kNone, AETHER_FEW_BLOCKS)
AETHER_QKV_GEMV_HALF(int4, 4, kNone, 320, AETHER_GEMV_BLOCKS)
AETHER_QKV_GEMV_HALF(int4_zp, 4, kZeros, 256, 2)
AETHER_QKV_GEMV_HALF(int4_offset, 4, kOffsets, 256, 1)
AETHER_QKV_GEMV_HALF(int2, 2, kZeros, 320, 2)
AETHER_QKV_GEMV_HALF(int1, 1, kNone, 320, 2)
