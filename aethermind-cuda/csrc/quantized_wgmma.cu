// Products of quantised weights with 9 to 64 tokens by wgmma, or both of a SwiGLU: see common/quantized_wgmma.cuh.
//
// Targets: 90a

#include "common/quantized_wgmma.cuh"

#define AETHER_QUANTIZED_WGMMA(columns, format, bits, term, dtype, threads)                                        \
  extern "C" __global__ void __launch_bounds__(threads, 1) quantized_wgmma##columns##_##format##_##dtype(          \
      void* out, const aether::dtype* x, const uint8_t* weight, const uint8_t* up, const aether::dtype* bias,      \
      int num_tokens, int num_outputs, int num_inputs, int is_float32, int num_blocks, int log2_chunks,            \
      float* partials) {                                                                                           \
    aether::quantized_wgmma<aether::dtype, bits, aether::AffineTerm::term, columns, threads>(                      \
        {out, bias, num_tokens, num_outputs, is_float32 != 0}, x, weight, up, num_inputs, num_blocks, log2_chunks, \
        partials);                                                                                                 \
  }
AETHER_EACH_QUANTIZED_WGMMA(AETHER_QUANTIZED_WGMMA)
