// Cache blocking and software prefetch of the matrix kernels. Each header of csrc/simd defines one constant, kTuning;
// the register tile (kTileRows × kTilePanels) is defined beside it.
#pragma once

#include <cstdint>

namespace aether::cpu {

// Defaults suit a second-level cache of 1 MiB. Lengths are rows, elements of K, panels of 16 columns or bytes, as
// named.
struct Tuning {
  // Software prefetch of weights. A tile of fewer rows leaves it to the hardware prefetcher; with more rows arithmetic
  // takes so long that the out-of-order window no longer reaches the next cache lines.
  int min_prefetch_rows = 5;
  // Prefetch distance within a panel, where a single tile multiplies every panel: one or two rows (bound by memory),
  // more rows of dense weights, and more rows of quantised weights.
  int64_t gemv_prefetch_bytes = 4096;
  int64_t skinny_prefetch_bytes = 6144;
  int64_t quantized_prefetch_bytes = 4096;

  // Rows up to which a product streams the weight once (gemm_skinny.h); with more rows it is split into cache blocks
  // (gemm_large.h).
  int64_t gemv_max_rows = 48;

  // Cache block of gemm_large.h and matmul.h: rows (a multiple of kTileRows), depth, panels.
  int64_t row_block = 144;
  int64_t k_block = 1024;
  int64_t panel_group = 16;
  // Packed rows that all workers share at once in gemm_large.h.
  int64_t shared_tile_bytes = 1400 * 1024;

  // Row block of a product with quantised weights: bytes of quantised activations, which leave the second-level cache
  // space for two panels and their accumulators, and rows at most.
  int64_t quantized_tile_bytes = 384 * 1024;
  int64_t max_quantized_rows = 144;
};

}  // namespace aether::cpu
