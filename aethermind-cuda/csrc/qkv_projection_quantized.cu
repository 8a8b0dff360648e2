// The projections of qkv_rope_cache_write for few tokens with quantised weights of one format (see
// common/quantized_weight.cuh). Kernels of up to eight tokens are compiled per affine term, as in linear_quantized.cu.

#include "common/dependent_launch.cuh"
#include "common/qkv_projection.cuh"
#include "common/quantized_gemv.cuh"
#include "common/quantized_weight.cuh"

namespace aether {

template <class T, int kBits, AffineTerm kTerm>
__device__ __forceinline__ void project_qkv_quantized_gemv(const QkvProjection& call, int num_blocks, int log2_chunks,
                                                           int runtime_term) {
  dispatch_qkv<T>(call, [&](const Results<T>& results, const Inputs<T>& x, const void* weight, int tile, int) {
    quantized_gemv<T, kBits, kTerm, 1>(results, x,
                                       {{static_cast<const uint8_t*>(weight), results.num_outputs, call.num_inputs,
                                         num_blocks, log2_chunks, static_cast<AffineTerm>(runtime_term)}},
                                       tile);
  });
}

}  // namespace aether

#define AETHER_QKV(name, bits, term, dtype, tiles, min_blocks)                                                 \
  extern "C" __global__ void __launch_bounds__(256, min_blocks)                                                \
      name##_##dtype(aether::QkvProjection call, int num_blocks, int log2_chunks, int runtime_term) {          \
    aether::begin_kernel();                                                                                    \
    using Weight = aether::QuantizedWeight<aether::dtype, bits, aether::AffineTerm::term>;                     \
    aether::project_qkv<Weight, tiles>(call, [&](const void* weight, int num_outputs) {                        \
      return Weight::Params{                                                                                   \
          static_cast<const uint8_t*>(weight),          num_outputs, call.num_inputs, num_blocks, log2_chunks, \
          static_cast<aether::AffineTerm>(runtime_term)};                                                      \
    });                                                                                                        \
  }
// For inputs whose rows are multiples of 16 bytes.
#define AETHER_QKV_GEMV(format, bits, term, dtype, threads)                                                          \
  extern "C" __global__ void __launch_bounds__(threads, aether::kQuantizedBlocks)                                    \
      qkv_projection_quantized_gemv_##format##_##dtype(aether::QkvProjection call, int num_blocks, int log2_chunks,  \
                                                       int runtime_term) {                                           \
    aether::project_qkv_quantized_gemv<aether::dtype, bits, aether::AffineTerm::term>(call, num_blocks, log2_chunks, \
                                                                                      runtime_term);                 \
  }
#define AETHER_QKV_GEMV_HALF(format, bits, term, threads) \
  AETHER_QKV_GEMV(format, bits, term, float16, threads)   \
  AETHER_QKV_GEMV(format, bits, term, bfloat16, threads)
#define AETHER_QKV_SKINNY(bits)                                                         \
  AETHER_QKV(qkv_projection_quantized_skinny8_int##bits, bits, kRuntime, float32, 1, 1) \
  AETHER_QKV(qkv_projection_quantized_skinny8_int##bits, bits, kRuntime, float16, 1, 1) \
  AETHER_QKV(qkv_projection_quantized_skinny8_int##bits, bits, kRuntime, bfloat16, 1, 1)

AETHER_QKV_SKINNY(8)
AETHER_QKV_SKINNY(4)
AETHER_QKV_SKINNY(2)
AETHER_QKV_SKINNY(1)
AETHER_QKV_GEMV_HALF(int8, 8, kNone, 256)
AETHER_QKV_GEMV_HALF(int8_zp, 8, kZeroPoints, 256)
AETHER_QKV_GEMV_HALF(int8_offset, 8, kOffsets, 256)
AETHER_QKV_GEMV_HALF(int4, 4, kNone, 320)
AETHER_QKV_GEMV_HALF(int4_zp, 4, kZeroPoints, 256)
AETHER_QKV_GEMV_HALF(int4_offset, 4, kOffsets, 256)
AETHER_QKV_GEMV_HALF(int2, 2, kZeroPoints, 256)
AETHER_QKV_GEMV_HALF(int1, 1, kNone, 320)
