// A packed quantised weight: cutting its products into blocks.
//
// A block is a range of rows by a range of items. Rows are packed (quantised) over the whole of K, which costs about as
// much as multiplying them by two panels, so a worker keeps the packed tiles of its last block of rows. Weights are
// streamed from front to back, once for every block of rows.
#pragma once

#include "kernels/gemm.h"
#include "kernels/gemm_grouped.h"
#include "kernels/quantized_gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kMinRowsPerClaim = 60;  // their arithmetic takes several times as long as reading the weight
inline constexpr int64_t kPanelsPerEpilogue = 16;
inline constexpr int64_t kMaxItemPanels = 64;
inline constexpr int64_t kMinQuantizedClaimBytes = 32 * 1024;  // the least of the weight that a worker claims at once
static_assert(kTuning.max_quantized_rows % kQuantizedRows == 0);

// Rows whose packed tiles fit in scratch.
AETHER_INLINE int64_t max_rows(int64_t num_rows, int64_t num_groups) {
  const int64_t fitting =
      kTuning.quantized_tile_bytes / larger(1, num_groups * kGroupRowBytes) / kQuantizedRows * kQuantizedRows;
  return smaller(num_rows, smaller(kTuning.max_quantized_rows, larger(kQuantizedRows, fitting)));
}

AETHER_INLINE int64_t panels_per_epilogue(int64_t panels_per_item) {
  return larger(kPanelsPerEpilogue, panels_per_item);
}

struct QuantizedSplit {
  int64_t row_block, num_row_blocks, items_per_claim, num_item_claims;
  int64_t min_claim;  // items

  // Items come with `panels_per_item` panels each.
  QuantizedSplit(int64_t num_rows, const PanelShape& shape, int64_t num_items, int64_t panels_per_item,
                 int32_t num_workers) {
    num_row_blocks = ceil_div(num_rows, larger(1, max_rows(num_rows, shape.num_groups)));
    // With enough rows a claim is a block of rows by all items, so that no row is packed twice.
    const bool is_many = num_rows >= kMinRowsPerClaim * 2 * num_workers;
    if (is_many) num_row_blocks = round_up(larger(num_row_blocks, num_rows / kMinRowsPerClaim), num_workers);
    row_block = ceil_div(num_rows, larger(1, num_row_blocks));
    num_row_blocks = row_block ? ceil_div(num_rows, row_block) : 0;
    min_claim = ceil_div(kMinQuantizedClaimBytes, larger(1, panels_per_item * shape.panel_bytes));
    const int64_t even = ceil_div(num_items, ceil_div(8 * num_workers, larger(1, num_row_blocks)));
    items_per_claim = is_many ? num_items : smaller(larger(1, larger(even, min_claim)), larger(1, num_items));
    num_item_claims = ceil_div(num_items, items_per_claim);
  }
};

// A weight [N, K] in a quantised format, with the interface of DenseWeight.
template <class T>
class QuantizedWeight {
 public:
  explicit QuantizedWeight(const am_tensor& weight) : k_(weight.shape[1]) {
    const char* packed = static_cast<const char*>(weight.data);
    std::memcpy(&layout_, packed, sizeof layout_);
    shape_ = panel_shape(layout_, k_);
    panels_ = packed + kHeaderBytes;
  }

  const char* panel(int64_t index) const { return panels_ + index * shape_.panel_bytes; }

  template <class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_block(const T* x, int64_t num_rows, int64_t num_items, int64_t panels_per_item,
                                    const am_team* team, PanelFn panel, FinishFn finish) const {
    const QuantizedSplit cut(num_rows, shape_, num_items, panels_per_item, team->num_workers);
    char* tiles = static_cast<char*>(team->scratch);
    float* c = reinterpret_cast<float*>(tiles + tile_bytes(num_rows, k_));
    const int64_t items_at_once = panels_per_epilogue(panels_per_item) / panels_per_item;
    int64_t packed_row = -1;
    const auto work = [&](int64_t row_begin, int64_t item_begin, int64_t item_end, int64_t next_claim) {
      const int64_t rows = smaller(cut.row_block, num_rows - row_begin);
      if (packed_row != row_begin) pack([&](int64_t r) { return x + (row_begin + r) * k_; }, rows, tiles, num_rows);
      packed_row = row_begin;
      const auto next_item = [&](int64_t item) { return smaller(item < item_end ? item : next_claim, num_items - 1); };
      for (int64_t item = item_begin; item < item_end; item += items_at_once) {
        const int64_t items = smaller(items_at_once, item_end - item);
        const int64_t num_panels = items * panels_per_item;
        const char* panels[kMaxItemPanels];
        for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item, items, p);
        multiply(tiles, num_rows, rows, panels, num_panels, panel(next_item(item + items), 1, 0), c);
        finish(row_begin, rows, item, items, c, num_panels * kPanelColumns);
      }
    };
    if (cut.num_row_blocks == 1) {
      for_each_chunk(team, num_items, 1, cut.min_claim, [&](int64_t begin, int64_t end) { work(0, begin, end, end); });
      return;
    }
    for_each_claimed(team, cut.num_row_blocks * cut.num_item_claims, [&](int64_t block) {
      const int64_t item_begin = block % cut.num_item_claims * cut.items_per_claim,
                    item_end = item_begin + cut.items_per_claim;
      // This worker's next claim usually comes after one claim of every other worker.
      work(block / cut.num_item_claims * cut.row_block, item_begin, smaller(item_end, num_items),
           item_end + (team->num_workers - 1) * cut.items_per_claim);
    });
  }

  template <class RowFn, class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_grouped_block(const SortedRows& rows, int64_t num_items, int64_t panels_per_item,
                                            const am_team* team, void* scratch, RowFn row, PanelFn panel,
                                            FinishFn finish) const {
    const int64_t num_rows = rows.num_rows(), max_unit_rows = max_rows(num_rows, shape_.num_groups);
    const GroupedSchedule schedule(rows, larger(1, max_unit_rows), num_items, 1, scratch);
    char* tiles = static_cast<char*>(scratch) + GroupedSchedule::bytes(num_rows, rows.num_groups(), max_unit_rows);
    float* c = reinterpret_cast<float*>(tiles + tile_bytes(num_rows, k_));
    const int64_t items_at_once = panels_per_epilogue(panels_per_item) / panels_per_item;
    const int64_t min_claim = ceil_div(kMinQuantizedClaimBytes, larger(1, panels_per_item * shape_.panel_bytes));
    int64_t packed_row = -1;
    schedule.for_each_part(team, min_claim, [&](const RowUnit& unit, int64_t begin, int64_t end, const RowUnit& after) {
      if (packed_row != unit.row_begin) {
        pack([&](int64_t r) { return row(unit.row_begin + r); }, unit.num_rows, tiles, num_rows);
      }
      packed_row = unit.row_begin;
      for (int64_t item = begin; item < end; item += items_at_once) {
        const int64_t items = smaller(items_at_once, end - item), num_panels = items * panels_per_item;
        const char* panels[kMaxItemPanels];
        for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(unit.group, item, items, p);
        const bool is_last = item + items == num_items;
        const char* next = panel(is_last ? after.group : unit.group, is_last ? 0 : item + items, 1, 0);
        multiply(tiles, num_rows, unit.num_rows, panels, num_panels, next, c);
        finish(unit.group, unit.row_begin, unit.num_rows, item, items, c, num_panels * kPanelColumns);
      }
    });
  }

  static size_t grouped_scratch_bytes(int64_t num_rows, int64_t num_groups, int64_t k, int64_t panels_per_item) {
    return GroupedSchedule::bytes(num_rows, num_groups, max_rows(num_rows, ceil_div(k, kGroupK))) +
           scratch_bytes(num_rows, k, panels_per_item, 1);
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t) {
    const int64_t rows = max_rows(num_rows, ceil_div(k, kGroupK));
    const int64_t sums = rows * panels_per_epilogue(panels_per_item) * kPanelColumns;
    return static_cast<size_t>(tile_bytes(num_rows, k) + sums * static_cast<int64_t>(sizeof(float)));
  }

 private:
  // Scratch holds the packed tiles of all rows, their residuals, the indices of outlier groups, and the accumulators.
  static int64_t groups_bytes(int64_t num_rows, int64_t num_groups) {
    return round_up(max_rows(num_rows, num_groups) * num_groups * kGroupRowBytes, kStepBytes);
  }
  static int64_t tile_bytes(int64_t num_rows, int64_t k) {
    const int64_t num_groups = ceil_div(k, kGroupK), bytes = groups_bytes(num_rows, num_groups);
    if (!kHasResiduals) return bytes;
    const int64_t outliers = max_rows(num_rows, num_groups) * RowTile::outliers_per_row(num_groups);
    return 2 * bytes + round_up(outliers * static_cast<int64_t>(sizeof(int32_t)), kStepBytes);
  }
  // The tile that begins with row `begin` of a block, in scratch for a product of `num_rows` rows.
  RowTile tile_at(char* tiles, int64_t num_rows, int64_t begin) const {
    const int64_t bytes = groups_bytes(num_rows, shape_.num_groups);
    char* groups = tiles + begin * shape_.num_groups * kGroupRowBytes;
    auto* outliers = reinterpret_cast<int32_t*>(tiles + 2 * bytes);
    return {groups, groups + bytes, outliers + begin * RowTile::outliers_per_row(shape_.num_groups)};
  }

  // Packs `rows` rows, in scratch for a product of `num_rows` rows.
  template <class RowFn>
  AETHER_INLINE void pack(RowFn row, int64_t rows, char* tiles, int64_t num_rows) const {
    const auto pack_rows = with_format(layout_, []<QuantizedFormat kFormat>() -> PackRowsFn<T> {
      return QuantizedMicrokernel<kFormat>::template pack_rows<T>;
    });
    const TileSplit cut(rows, quantized_tile_rows(rows));
    for (int64_t tile = 0; tile < cut.count; ++tile) {
      const int64_t begin = cut.begin(tile), size = cut.size(tile);
      const T* tile_rows[kQuantizedRows];
      for (int64_t r = 0; r < size; ++r) tile_rows[r] = row(begin + r);
      pack_rows(tile_rows, k_, size, tile_at(tiles, num_rows, begin));
    }
  }

  // `next` is the panel that is multiplied after these.
  void multiply(char* tiles, int64_t num_rows, int64_t rows, const char* const* panels, int64_t num_panels,
                const char* next, float* c) const {
    const QuantizedTileKernels* kernels = with_format(
        layout_,
        []<QuantizedFormat kFormat>() -> const QuantizedTileKernels* { return &kQuantizedTileKernels<kFormat>; });
    const TileSplit cut(rows, quantized_tile_rows(rows));
    const int64_t row_stride = num_panels * kPanelColumns, num_lines = shape_.panel_bytes / kLineBytes;
    const int64_t ahead = prefetch_distance(rows, kTuning.quantized_prefetch_bytes);
    // A single tile is bound by memory, which one sequential stream uses best.
    const int64_t panels_at_once = cut.count == 1 ? 1 : quantized_panels_per_tile(ceil_div(rows, cut.count));
    for (int64_t p = 0; p < num_panels;) {
      const bool is_single = panels_at_once == 1 || num_panels - p < panels_at_once;
      const int64_t end = p + (is_single ? 1 : panels_at_once);
      const int64_t distance = cut.count == 1 ? ahead : (end < num_panels ? panels[end] : next) - panels[p];
      for (int64_t tile = 0; tile < cut.count; ++tile) {
        const int64_t begin = cut.begin(tile), size = cut.size(tile);
        const QuantizedTileKernel multiply_tile = (is_single ? kernels->single_panel : kernels->multi_panel)[size];
        const RowTile rows_of_tile = tile_at(tiles, num_rows, begin);
        float* sums = c + begin * row_stride + p * kPanelColumns;
        multiply_tile(rows_of_tile.groups, panels + p, shape_,
                      prefetch_share(distance, num_lines, shape_.num_groups, tile, cut.count), sums, row_stride);
        if constexpr (kHasResiduals) {
          kernels->residuals(rows_of_tile, size, panels + p, end - p, shape_, sums, row_stride);
        }
      }
      p = end;
    }
  }

  QuantizedLayout layout_;
  PanelShape shape_;
  int64_t k_;
  const char* panels_;
};

}  // namespace aether::cpu::AETHER_ISA
