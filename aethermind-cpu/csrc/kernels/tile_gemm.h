// GEMM of bfloat16 on a tile unit (tile_unit.h).
//
// A block of rows by a few panels is multiplied in tiles of sixteen rows by two panels, or by four where sixteen rows
// are all there is: those are bound by reading the weight, and four panels are four streams. Rows are read in place.
// Where more rows share a weight, K is divided into slices whose operands fit a first-level cache; sums leave the tile
// registers between slices, which rounds nothing.
//
// Batch invariance: every element of C is one sum over ascending K in the tile unit's order, whatever the blocking.
#pragma once

#include "kernels/gemm_large.h"
#include "kernels/gemm_skinny.h"
#include "kernels/sorted_rows.h"
#include "tile_unit.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kTileK = 2 * kTileSteps;            // elements of K that one tile holds
inline constexpr int64_t kTileSliceSteps = 14 * kTileSteps;  // 14 KiB of a tile's rows, 28 KiB of two panels
inline constexpr int64_t kTilePanelsOfSlice = 2;             // multiplied at once, by many rows
inline constexpr int64_t kTilePrefetchBytes = 2048;          // of a panel, for few rows
inline constexpr int64_t kTileRowBlock = 9 * kMaxTileRows;   // rows of a claim
static_assert(kTileRowBlock == kTuning.row_block);

// Rows of K values, `stride` elements apart. With `is_padded` each is followed by zeros up to a multiple of kTileK.
struct TileMatrix {
  const BFloat16* x;
  int64_t stride, k;
  bool is_padded;
};

// One worker's use of the tile unit during a kernel. Registers are configured for the products that come, and released
// at the end, so that no other code pays for their state.
class TileScope {
 public:
  TileScope() : unit_(tile_unit()) {}
  ~TileScope() {
    if (num_rows_ > 0) unit_.release();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

  // Rows [row_begin, row_end) by `num_panels` panels; sets c [rows][num_panels][16].
  void multiply(const TileMatrix& x, int64_t row_begin, int64_t row_end, const char* const* panels, int64_t num_panels,
                float* c) {
    const int64_t num_full = (row_end - row_begin) / kMaxTileRows * kMaxTileRows;
    const auto target = [&](int64_t row) { return c + (row - row_begin) * num_panels * kPanelColumns; };
    // Tiles of sixteen rows first: another number of rows takes another configuration.
    if (num_full > 0) {
      multiply_equal(x, row_begin, row_begin + num_full, kMaxTileRows, panels, num_panels, target(row_begin));
    }
    const int64_t rest = row_begin + num_full;
    if (rest < row_end) multiply_equal(x, rest, row_end, row_end - rest, panels, num_panels, target(rest));
  }

 private:
  // The same for a multiple of `tile_rows`.
  void multiply_equal(const TileMatrix& x, int64_t row_begin, int64_t row_end, int64_t tile_rows,
                      const char* const* panels, int64_t num_panels, float* c) {
    // Where K is odd, the last word of a row ends behind it: its steps are a tail, of which the rows are copied.
    const bool is_copied = x.k % 2 == 1 && !x.is_padded;
    const int64_t all_steps = ceil_div(x.k, 2), row_stride = num_panels * kPanelColumns;
    const int64_t num_steps = (is_copied ? all_steps - 1 : all_steps) / kTileSteps * kTileSteps;
    const int64_t tail_steps = all_steps - num_steps;
    const bool is_single_tile = row_end - row_begin == tile_rows;
    const int64_t slice = is_single_tile ? larger(1, num_steps) : kTileSliceSteps;
    const int64_t at_once = is_single_tile ? kMaxProductPanels : kTilePanelsOfSlice;
    configure(tile_rows, tail_steps);
    for (int64_t begin = 0; begin == 0 || begin < num_steps; begin += slice) {
      const int64_t steps = smaller(slice, num_steps - begin);
      const bool is_last = begin + steps == num_steps;
      for (int64_t p = 0; p < num_panels; p += at_once) {
        const int64_t count = smaller(at_once, num_panels - p);
        const char* w[kMaxProductPanels];
        for (int64_t i = 0; i < count; ++i) w[i] = panels[p + i] + begin * kStepBytes;
        for (int64_t row = row_begin; row < row_end; row += tile_rows) {
          TileProduct product{};
          product.x = address(x, row, begin);
          product.x_stride = x.stride * static_cast<int64_t>(sizeof(BFloat16));
          product.panels = w;
          product.num_rows = static_cast<int>(tile_rows);
          product.num_panels = static_cast<int>(count);
          product.num_steps = steps;
          product.tail_steps = is_last ? tail_steps : 0;
          product.x_tail = address(x, row, num_steps);
          product.x_tail_stride = product.x_stride;
          product.c = c + (row - row_begin) * row_stride + p * kPanelColumns;
          product.c_stride = row_stride * static_cast<int64_t>(sizeof(float));
          product.c_panel_stride = kStepBytes;
          product.is_first = begin == 0;
          product.prefetch_bytes = is_single_tile ? kTilePrefetchBytes : 0;
          if (is_last && is_copied) {
            multiply_copied(product, x, row, 2 * num_steps);
          } else {
            unit_.multiply_bfloat16(product);
          }
        }
      }
    }
  }

  static const char* address(const TileMatrix& x, int64_t row, int64_t step) {
    return reinterpret_cast<const char*>(x.x + row * x.stride + 2 * step);
  }

  // The tail begins at element `k` of the rows.
  void multiply_copied(TileProduct& product, const TileMatrix& x, int64_t row, int64_t k) {
    alignas(kStepBytes) BFloat16 copy[kMaxTileRows][kTileK];
    for (int64_t r = 0; r < product.num_rows; ++r) {
      std::memcpy(copy[r], x.x + (row + r) * x.stride + k, static_cast<size_t>(x.k - k) * sizeof(BFloat16));
      copy[r][x.k - k] = BFloat16{};
    }
    product.x_tail = reinterpret_cast<const char*>(copy);
    product.x_tail_stride = sizeof copy[0];
    unit_.multiply_bfloat16(product);
  }

  void configure(int64_t num_rows, int64_t tail_steps) {
    if (num_rows == num_rows_ && tail_steps == tail_steps_) return;
    unit_.configure(static_cast<int>(num_rows), static_cast<int>(tail_steps));
    num_rows_ = num_rows;
    tail_steps_ = tail_steps;
  }

  const TileUnit& unit_;
  int64_t num_rows_ = 0, tail_steps_ = 0;
};

inline size_t tile_accumulator_bytes(int64_t num_rows, int64_t panels_per_item) {
  const int64_t few = smaller(num_rows, kTuning.gemv_max_rows) * larger(kMaxPanels, panels_per_item);
  const int64_t many = smaller(num_rows, kTileRowBlock) * larger(kEpiloguePanels, panels_per_item);
  return static_cast<size_t>(larger(few, many) * kPanelColumns) * sizeof(float);
}

// One worker's part of a product of few rows; see DenseWeight::for_each_block.
template <class PanelFn, class FinishFn>
AETHER_INLINE void tile_gemm_skinny(const SkinnySplit& cut, const BFloat16* x, const am_team* team, PanelFn panel,
                                    FinishFn finish) {
  float* c = static_cast<float*>(team->scratch);
  TileScope tiles;
  const auto work = [&](int64_t item_begin, int64_t num_items) {
    const int64_t num_panels = num_items * cut.panels_per_item;
    const char* panels[kMaxPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item_begin, num_items, p);
    tiles.multiply({x, cut.k, cut.k, false}, 0, cut.num_rows, panels, num_panels, c);
    finish(0, cut.num_rows, item_begin, num_items, c, num_panels * kPanelColumns);
  };
  // Two tiles of rows read the same panels one after the other: their block must fit a second-level cache.
  const int64_t items_at_once = larger(1, kMaxProductPanels / cut.panels_per_item);
  const int64_t max_block = cut.num_rows > kMaxTileRows ? items_at_once : cut.max_block;
  for_each_chunk(team, cut.num_items, items_at_once, cut.min_claim, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item += max_block) work(item, smaller(max_block, end - item));
  });
}

// Rows in blocks of nearly equal size, and blocks in passes: a pass is multiplied by the whole weight.
struct TileRowBlocks {
  int64_t num_rows, block_rows, count, pass_blocks;

  explicit TileRowBlocks(int64_t num_rows)
      : num_rows(num_rows),
        block_rows(round_up(ceil_div(num_rows, larger(1, ceil_div(num_rows, kTileRowBlock))), kMaxTileRows)),
        count(num_rows ? ceil_div(num_rows, block_rows) : 0),
        pass_blocks(ceil_div(count, larger(1, ceil_div(count, kInPlaceBlocksPerPass)))) {}

  int64_t begin(int64_t block) const { return block * block_rows; }
  int64_t end(int64_t block) const { return smaller(num_rows, begin(block + 1)); }
  int64_t num_passes() const { return count ? ceil_div(count, pass_blocks) : 0; }
  int64_t first_of(int64_t pass) const { return smaller(count, pass * pass_blocks); }
};

// One worker's part of a product of many rows. A claim is a block of rows by a group of items; several blocks of rows,
// which share a group's weights in the outer caches, are a pass over the weight (gemm_large.h).
template <class PanelFn, class FinishFn>
AETHER_INLINE void tile_gemm_large(const BFloat16* x, int64_t num_rows, int64_t k, int64_t num_items,
                                   int64_t panels_per_item, const am_team* team, PanelFn panel, FinishFn finish) {
  const TileRowBlocks blocks(num_rows);
  const ItemGroups groups(num_items, panels_per_item, blocks.pass_blocks, team->num_workers);
  const int64_t num_groups = groups.count(), items_at_once = larger(1, kEpiloguePanels / panels_per_item);
  float* c = static_cast<float*>(team->scratch);
  TileScope tiles;
  int64_t ticket = team->claim(team);
  for (int64_t pass = 0; pass < blocks.num_passes(); ++pass) {
    const int64_t first = blocks.first_of(pass), count = blocks.first_of(pass + 1) - first;
    const int64_t first_ticket = first * num_groups;
    int64_t group = 0, begin = 0;  // tickets ascend, so the walk over the groups continues where it stopped
    for (; ticket < first_ticket + count * num_groups; ticket = team->claim(team)) {
      const int64_t index = (ticket - first_ticket) % count;
      for (; group < (ticket - first_ticket) / count; ++group) begin += groups.size(begin);
      const int64_t end = begin + groups.size(begin);
      const int64_t row = blocks.begin(first + index), row_end = blocks.end(first + index);
      for (int64_t item = begin; item < end; item += items_at_once) {
        const int64_t items = smaller(items_at_once, end - item), num_panels = items * panels_per_item;
        const char* panels[kMaxPanels];
        for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item, items, p);
        tiles.multiply({x, k, k, false}, row, row_end, panels, num_panels, c);
        finish(row, row_end - row, item, items, c, num_panels * kPanelColumns);
      }
    }
  }
}

// Scratch of tile_gemm_grouped for at most `num_rows` rows: units, padded rows, accumulators.
inline int64_t padded_row_bytes(int64_t k) { return round_up(k, kTileK) * static_cast<int64_t>(sizeof(BFloat16)); }
inline size_t tile_grouped_scratch_bytes(int64_t num_rows, int64_t num_groups, int64_t k, int64_t panels_per_item) {
  return GroupedSchedule::bytes(num_rows, num_groups, kTileRowBlock) +
         static_cast<size_t>(smaller(num_rows, kTileRowBlock) * padded_row_bytes(k)) +
         static_cast<size_t>(smaller(num_rows, kTileRowBlock) * larger(kTuning.panel_group, panels_per_item) *
                             kPanelColumns) *
             sizeof(float);
}

// One worker's part of a grouped product; see DenseWeight::for_each_grouped_block. Rows are gathered into scratch.
template <class RowFn, class PanelFn, class FinishFn>
AETHER_INLINE void tile_gemm_grouped(const SortedRows& rows, int64_t k, int64_t num_items, int64_t panels_per_item,
                                     const am_team* team, void* scratch, RowFn row, PanelFn panel, FinishFn finish) {
  const SkinnySplit cut(rows.num_rows(), k, ceil_div(k, 2), num_items, panels_per_item);
  const GroupedSchedule schedule(rows, kTileRowBlock, num_items, cut.items_at_once, scratch);
  char* packed =
      static_cast<char*>(scratch) + GroupedSchedule::bytes(rows.num_rows(), rows.num_groups(), kTileRowBlock);
  float* c = reinterpret_cast<float*>(packed + smaller(rows.num_rows(), kTileRowBlock) * padded_row_bytes(k));
  const TileMatrix x = {reinterpret_cast<const BFloat16*>(packed), round_up(k, kTileK), k, true};
  const int64_t max_items = larger(1, kTuning.panel_group / panels_per_item);
  int64_t packed_row = -1;
  TileScope tiles;
  schedule.for_each_part(team, cut.min_claim, [&](const RowUnit& unit, int64_t begin, int64_t end, const RowUnit&) {
    for (int64_t r = 0; packed_row != unit.row_begin && r < unit.num_rows; ++r) {
      char* target = packed + r * padded_row_bytes(k);
      std::memcpy(target, row(unit.row_begin + r), static_cast<size_t>(k) * sizeof(BFloat16));
      std::memset(target + k * static_cast<int64_t>(sizeof(BFloat16)), 0,
                  static_cast<size_t>(round_up(k, kTileK) - k) * sizeof(BFloat16));
    }
    packed_row = unit.row_begin;
    for (int64_t item = begin; item < end; item += max_items) {
      const int64_t items = smaller(max_items, end - item), num_panels = items * panels_per_item;
      const char* panels[kMaxPanels];
      for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(unit.group, item, items, p);
      tiles.multiply(x, 0, unit.num_rows, panels, num_panels, c);
      finish(unit.group, unit.row_begin, unit.num_rows, item, items, c, num_panels * kPanelColumns);
    }
  });
}

}  // namespace aether::cpu::AETHER_ISA
