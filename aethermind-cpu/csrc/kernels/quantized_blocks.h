// Cutting a product over quantised weights into blocks, and handing them to the workers.
//
// A block is a run of rows by a run of items. Rows are brought into tiles over the whole of K, which costs about as
// much as multiplying them by two panels: a worker keeps the tiles of the block of rows that it had last. Weights
// stream from front to back, once for every block of rows.
#pragma once

#include "kernels/gemm.h"
#include "kernels/quantized_gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kTileBytes = 384 * 1024;  // leaves a second-level cache room for two panels and their sums
inline constexpr int64_t kMostRows = 144;
inline constexpr int64_t kFewestRowsOfClaim = 60;  // whose arithmetic takes several times as long as reading a weight
inline constexpr int64_t kPanelsAtOnce = 16;
inline constexpr int64_t kMostItemPanels = 64;
inline constexpr int64_t kStreamFetchBytes = 4096;    // how far ahead three rows or more of a single tile fetch
inline constexpr int64_t kMinClaimBytes = 32 * 1024;  // enough of the weight to be worth a claim

// Rows whose tiles may lie in scratch at once.
AETHER_INLINE int64_t most_rows(int64_t num_rows, int64_t num_units) {
  const int64_t fitting = kTileBytes / larger(1, num_units * kUnitRowBytes) / kQuantizedRows * kQuantizedRows;
  return smaller(num_rows, smaller(kMostRows, larger(kQuantizedRows, fitting)));
}

AETHER_INLINE int64_t panels_together(int64_t panels_per_item) { return larger(kPanelsAtOnce, panels_per_item); }

struct QuantizedBlocking {
  int64_t row_block, num_row_blocks, group, num_groups;
  int64_t least;  // items of a claim

  // Items come with `panels_per_item` panels each.
  QuantizedBlocking(int64_t num_rows, const PanelShape& shape, int64_t num_items, int64_t panels_per_item,
                    int32_t num_workers) {
    num_row_blocks = divide_up(num_rows, larger(1, most_rows(num_rows, shape.num_units)));
    // With rows enough a claim is a block of rows by all items, so that none is brought twice.
    const bool is_many = num_rows >= kFewestRowsOfClaim * 2 * num_workers;
    if (is_many) num_row_blocks = round_up(larger(num_row_blocks, num_rows / kFewestRowsOfClaim), num_workers);
    row_block = divide_up(num_rows, larger(1, num_row_blocks));
    num_row_blocks = row_block ? divide_up(num_rows, row_block) : 0;
    least = divide_up(kMinClaimBytes, larger(1, panels_per_item * shape.panel_bytes));
    const int64_t even = divide_up(num_items, divide_up(8 * num_workers, larger(1, num_row_blocks)));
    group = is_many ? num_items : smaller(larger(1, larger(even, least)), larger(1, num_items));
    num_groups = divide_up(num_items, group);
  }
};

// A packed quantised weight, as DenseWeight is a dense one.
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
    const QuantizedBlocking cut(num_rows, shape_, num_items, panels_per_item, team->num_workers);
    char* tiles = static_cast<char*>(team->scratch);
    float* c = reinterpret_cast<float*>(tiles + tile_bytes(num_rows, k_));
    const int64_t items_together = panels_together(panels_per_item) / panels_per_item;
    int64_t brought = -1;
    const auto work = [&](int64_t row_begin, int64_t item_begin, int64_t item_end, int64_t next_claim) {
      const int64_t rows = smaller(cut.row_block, num_rows - row_begin);
      if (brought != row_begin) bring(x + row_begin * k_, rows, tiles, num_rows);
      brought = row_begin;
      const auto next_item = [&](int64_t item) { return smaller(item < item_end ? item : next_claim, num_items - 1); };
      for (int64_t item = item_begin; item < item_end; item += items_together) {
        const int64_t items = smaller(items_together, item_end - item);
        const int64_t num_panels = items * panels_per_item;
        const char* panels[kMostItemPanels];
        for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item, items, p);
        multiply(tiles, num_rows, rows, panels, num_panels, panel(next_item(item + items), 1, 0), c);
        finish(row_begin, rows, item, items, c, num_panels * kPanelColumns);
      }
    };
    if (cut.num_row_blocks == 1) {
      for_each_stretch(team, num_items, 1, cut.least, [&](int64_t begin, int64_t end) { work(0, begin, end, end); });
      return;
    }
    for_each_claimed(team, cut.num_row_blocks * cut.num_groups, [&](int64_t block) {
      const int64_t item_begin = block % cut.num_groups * cut.group, item_end = item_begin + cut.group;
      // What this worker probably multiplies next comes after a claim of every other.
      work(block / cut.num_groups * cut.row_block, item_begin, smaller(item_end, num_items),
           item_end + (team->num_workers - 1) * cut.group);
    });
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t) {
    const int64_t rows = most_rows(num_rows, divide_up(k, kUnitK));
    const int64_t sums = rows * panels_together(panels_per_item) * kPanelColumns;
    return static_cast<size_t>(tile_bytes(num_rows, k) + sums * static_cast<int64_t>(sizeof(float)));
  }

 private:
  // Scratch holds the units of all rows, then their residuals and which units these are of.
  static int64_t units_bytes(int64_t num_rows, int64_t num_units) {
    return round_up(most_rows(num_rows, num_units) * num_units * kUnitRowBytes, kStepBytes);
  }
  static int64_t tile_bytes(int64_t num_rows, int64_t k) {
    const int64_t num_units = divide_up(k, kUnitK), bytes = units_bytes(num_rows, num_units);
    if (!kHasResiduals) return bytes;
    const int64_t outliers = most_rows(num_rows, num_units) * RowTile::outliers_per_row(num_units);
    return 2 * bytes + round_up(outliers * static_cast<int64_t>(sizeof(int32_t)), kStepBytes);
  }
  // The tile whose first row is the block's `begin`th, where scratch is for blocks of `num_rows`.
  RowTile tile_at(char* tiles, int64_t num_rows, int64_t begin) const {
    const int64_t bytes = units_bytes(num_rows, shape_.num_units);
    char* units = tiles + begin * shape_.num_units * kUnitRowBytes;
    auto* outliers = reinterpret_cast<int32_t*>(tiles + 2 * bytes);
    return {units, units + bytes, outliers + begin * RowTile::outliers_per_row(shape_.num_units)};
  }

  void bring(const T* x, int64_t rows, char* tiles, int64_t num_rows) const {
    const auto bring_tile = with_format(
        layout_, []<QuantizedFormat kFormat>() -> BringFn<T> { return QuantizedEngine<kFormat>::template bring<T>; });
    const Tiles cut(rows, quantized_tile_rows(rows));
    for (int64_t tile = 0; tile < cut.count; ++tile) {
      const int64_t begin = cut.begin(tile);
      bring_tile(x + begin * k_, k_, cut.size(tile), tile_at(tiles, num_rows, begin));
    }
  }

  // `next` is the panel that will be wanted after these.
  void multiply(char* tiles, int64_t num_rows, int64_t rows, const char* const* panels, int64_t num_panels,
                const char* next, float* c) const {
    const QuantizedTiles* kernels = with_format(
        layout_, []<QuantizedFormat kFormat>() -> const QuantizedTiles* { return &kQuantizedTiles<kFormat>; });
    const Tiles cut(rows, quantized_tile_rows(rows));
    const int64_t row_stride = num_panels * kPanelColumns, num_lines = shape_.panel_bytes / kLineBytes;
    const int64_t ahead = fetch_ahead_bytes(rows, kStreamFetchBytes);
    // A single tile is bound by memory, which one long stream keeps busiest.
    const int64_t together = cut.count == 1 ? 1 : quantized_panels_at_once(divide_up(rows, cut.count));
    for (int64_t p = 0; p < num_panels;) {
      const bool is_single = together == 1 || num_panels - p < together;
      const int64_t end = p + (is_single ? 1 : together);
      const int64_t distance = cut.count == 1 ? ahead : (end < num_panels ? panels[end] : next) - panels[p];
      for (int64_t tile = 0; tile < cut.count; ++tile) {
        const int64_t begin = cut.begin(tile), size = cut.size(tile);
        const QuantizedTileFn multiply_tile = (is_single ? kernels->single : kernels->several)[size];
        const RowTile rows_of_tile = tile_at(tiles, num_rows, begin);
        float* sums = c + begin * row_stride + p * kPanelColumns;
        multiply_tile(rows_of_tile.units, panels + p, shape_,
                      share_of_tile(distance, num_lines, shape_.num_units, tile, cut.count), sums, row_stride);
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
