// A dense bfloat16 weight that a tile unit multiplies. Its panels (pack.h) are those of all levels: sixteen steps of a
// panel are a tile.
#pragma once

#include "kernels/dense_weight.h"
#include "kernels/tile_gemm.h"

namespace aether::cpu::AETHER_ISA {

// The interface is that of the general DenseWeight.
template <>
class DenseWeight<BFloat16> {
 public:
  explicit DenseWeight(const am_tensor& weight)
      : panels_(static_cast<const char*>(weight.data)), k_(weight.shape[1]), steps_(ceil_div(k_, 2)) {}

  const char* panel(int64_t index) const { return panels_ + index * steps_ * kStepBytes; }

  template <class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_block(const BFloat16* x, int64_t num_rows, int64_t num_items, int64_t panels_per_item,
                                    const am_team* team, PanelFn panel, FinishFn finish) const {
    if (num_rows > kTuning.gemv_max_rows) {
      tile_gemm_large(x, num_rows, k_, num_items, panels_per_item, team, panel, finish);
    } else {
      const SkinnySplit split(num_rows, k_, steps_, num_items, panels_per_item);
      tile_gemm_skinny(split, x, team, panel, finish);
    }
  }

  template <class RowFn, class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_grouped_block(const SortedRows& rows, int64_t num_items, int64_t panels_per_item,
                                            const am_team* team, void* scratch, RowFn row, PanelFn panel,
                                            FinishFn finish) const {
    tile_gemm_grouped(rows, k_, num_items, panels_per_item, team, scratch, row, panel, finish);
  }

  static size_t grouped_scratch_bytes(int64_t num_rows, int64_t num_groups, int64_t k, int64_t panels_per_item) {
    return tile_grouped_scratch_bytes(num_rows, num_groups, k, panels_per_item);
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t, int64_t panels_per_item, int32_t) {
    return tile_accumulator_bytes(num_rows, panels_per_item);
  }

 private:
  const char* panels_;
  int64_t k_, steps_;
};

}  // namespace aether::cpu::AETHER_ISA
