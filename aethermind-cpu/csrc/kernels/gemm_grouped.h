// Grouped GEMM: every group of rows is multiplied by a weight of its own. A block is up to kTuning.row_block rows of
// one group by a range of whole panels, computed like a block of a skinny GEMM: few rows read the weight once, front to
// back, and the weights of groups without rows are not read.
#pragma once

#include "kernels/gemm_skinny.h"
#include "kernels/sorted_rows.h"

namespace aether::cpu::AETHER_ISA {

// Items of a block of `num_rows` rows: their accumulators fit in scratch, and in a second-level cache beside the rows.
AETHER_INLINE int64_t grouped_block_items(int64_t num_rows, int64_t panels_per_item) {
  const int64_t panels = num_rows <= kTuning.gemv_max_rows ? kMaxPanels : kTuning.panel_group;
  return larger(1, panels / panels_per_item);
}

template <class Micro>
int64_t grouped_tile_bytes(int64_t num_rows, int64_t k) {
  return smaller(num_rows, kTuning.row_block) * round_up(k, kLineK<Micro>) *
         static_cast<int64_t>(sizeof(typename Micro::Activation));
}

// Scratch of gemm_grouped for at most `num_rows` rows: units, packed rows, accumulators.
template <class Micro>
size_t grouped_scratch_bytes(int64_t num_rows, int64_t num_groups, int64_t k, int64_t panels_per_item) {
  const int64_t few = smaller(num_rows, kTuning.gemv_max_rows) * larger(kMaxPanels, panels_per_item);
  const int64_t many = smaller(num_rows, kTuning.row_block) * larger(kTuning.panel_group, panels_per_item);
  const int64_t sum_bytes = larger(few, many) * kPanelColumns * static_cast<int64_t>(sizeof(float));
  return GroupedSchedule::bytes(num_rows, num_groups, kTuning.row_block) +
         static_cast<size_t>(grouped_tile_bytes<Micro>(num_rows, k) + sum_bytes);
}

// One worker's part; see DenseWeight::for_each_grouped_block. `scratch` has grouped_scratch_bytes(…) bytes.
template <class Micro, class RowFn, class PanelFn, class FinishFn>
AETHER_INLINE void gemm_grouped(const SortedRows& rows, int64_t k, int64_t num_items, int64_t panels_per_item,
                                const am_team* team, void* scratch, RowFn row, PanelFn panel, FinishFn finish) {
  const SkinnySplit cut(rows.num_rows(), k, ceil_div(k, Micro::kStepK), num_items, panels_per_item);
  const GroupedSchedule schedule(rows, kTuning.row_block, num_items, cut.items_at_once, scratch);
  char* tiles =
      static_cast<char*>(scratch) + GroupedSchedule::bytes(rows.num_rows(), rows.num_groups(), kTuning.row_block);
  float* c = reinterpret_cast<float*>(tiles + grouped_tile_bytes<Micro>(rows.num_rows(), k));
  int64_t packed_row = -1;
  const auto work = [&](const RowUnit& unit, int64_t begin, int64_t end, const RowUnit& after) {
    const int64_t max_block = grouped_block_items(unit.num_rows, panels_per_item);
    for (int64_t item = begin; item < end; item += max_block) {
      const int64_t items = smaller(max_block, end - item), num_panels = items * panels_per_item;
      const char* panels[kMaxPanels];
      for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(unit.group, item, items, p);
      const bool is_last = item + items == num_items;
      const char* next = panel(is_last ? after.group : unit.group, is_last ? 0 : item + items, 1, 0);
      multiply_skinny<Micro>([&](int64_t r) { return row(unit.row_begin + r); }, unit.num_rows, k,
                             packed_row == unit.row_begin, panels, num_panels, next, tiles, c);
      packed_row = unit.row_begin;
      finish(unit.group, unit.row_begin, unit.num_rows, item, items, c, num_panels * kPanelColumns);
    }
  };
  schedule.for_each_part(team, cut.min_claim, work);
}

}  // namespace aether::cpu::AETHER_ISA
