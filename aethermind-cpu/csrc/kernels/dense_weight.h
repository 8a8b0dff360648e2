// A dense packed weight, and the choice between skinny and large GEMM. Where there is a tile unit, it multiplies
// bfloat16 (tile_weight.h).
#pragma once

#include "kernels/gemm_grouped.h"
#include "kernels/gemm_large.h"
#include "kernels/gemm_skinny.h"

namespace aether::cpu::AETHER_ISA {

// A weight [N, K] of T in panels (pack.h). Operators use a weight only by this interface, which QuantizedWeight has,
// too.
template <class T>
class DenseWeight {
 public:
  explicit DenseWeight(const am_tensor& weight)
      : panels_(static_cast<const char*>(weight.data)),
        k_(weight.shape[1]),
        steps_(ceil_div(k_, Microkernel<T>::kStepK)) {}

  const char* panel(int64_t index) const { return panels_ + index * steps_ * kStepBytes; }

  // One worker's part of the product of `x` [num_rows, K] and weights of this layout.
  // `panel(item_begin, num_items, p)` is panel p of the block with these items, in an order of the caller's choice.
  // `finish(row_begin, num_rows, item_begin, num_items, c, stride)` is the epilogue of a block: it takes the finished
  // sums c[row][p][16], rows `stride` floats apart, and may change them.
  template <class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_block(const T* x, int64_t num_rows, int64_t num_items, int64_t panels_per_item,
                                    const am_team* team, PanelFn panel, FinishFn finish) const {
    using Micro = Microkernel<T>;
    if (num_rows > kTuning.gemv_max_rows) {
      gemm_large<Micro>(x, num_rows, k_, num_items, panels_per_item, team, panel, finish);
    } else {
      const SkinnySplit split(num_rows, k_, steps_, num_items, panels_per_item);
      gemm_skinny<Micro>(split, x, team, panel, finish);
    }
  }

  // One worker's part of a grouped product, in which every group of rows has weights of its own, of this layout. The
  // result of a row has the same bits as with for_each_block. `row(position)` are K values of the row at a position of
  // the sorted order, `panel(group, item_begin, num_items, p)` and `finish(group, row_begin, num_rows, item_begin,
  // num_items, c, stride)` are those of for_each_block, with positions as rows. `scratch` has grouped_scratch_bytes(…)
  // bytes.
  template <class RowFn, class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_grouped_block(const SortedRows& rows, int64_t num_items, int64_t panels_per_item,
                                            const am_team* team, void* scratch, RowFn row, PanelFn panel,
                                            FinishFn finish) const {
    gemm_grouped<Microkernel<T>>(rows, k_, num_items, panels_per_item, team, scratch, row, panel, finish);
  }

  static size_t grouped_scratch_bytes(int64_t num_rows, int64_t num_groups, int64_t k, int64_t panels_per_item) {
    return AETHER_ISA::grouped_scratch_bytes<Microkernel<T>>(num_rows, num_groups, k, panels_per_item);
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t num_workers) {
    using Micro = Microkernel<T>;
    const size_t skinny = skinny_scratch_bytes<Micro>(num_rows, k, panels_per_item);
    const size_t large = large_scratch_bytes<Micro, T>(num_rows, k, panels_per_item, num_workers);
    return num_rows > kTuning.gemv_max_rows && large > skinny ? large : skinny;
  }

 private:
  const char* panels_;
  int64_t k_, steps_;
};

}  // namespace aether::cpu::AETHER_ISA

#ifdef AETHER_HAS_TILES
#include "kernels/tile_weight.h"
#endif
