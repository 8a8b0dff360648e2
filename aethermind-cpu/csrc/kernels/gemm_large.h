// Large GEMM: products of many rows (prefill), which are bound by arithmetic. They are split into blocks that fit a
// core's caches.
//
// Rows that hold what a tile kernel multiplies are read in place. Otherwise all workers first pack the rows into tiles
// (gemm.h): each packs some of them into its own scratch, where all workers read them. Then a claim is a block of rows
// by a group of panels. It is computed kTuning.k_block of K at a time, so that its tiles (288 KiB of bfloat16), its
// accumulators (144 KiB) and a slice of two panels (64 KiB) fit a second-level cache of 1 MiB.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kEpiloguePanels = 4;      // per epilogue: their sums are still in the first-level cache
inline constexpr int64_t kMinClaimsPerWorker = 4;  // into which the columns that are left are divided
inline constexpr int64_t kInPlaceBlocksPerPass = 5;
inline constexpr int64_t kAliasingStride = 8 * 1024;  // rows a multiple of this apart map to few sets of a cache
static_assert(kTuning.row_block % kTileRows == 0);

// Whether tile kernels can read rows of K values in place: as activations, with a whole last step.
template <class Micro, class T>
constexpr bool can_read_in_place(int64_t k) {
  const int64_t row_bytes = k * static_cast<int64_t>(sizeof(T));
  return Micro::kReadsRowsInPlace && k % Micro::kStepK == 0 && row_bytes % kAliasingStride != 0;
}

// Split of rows into blocks of several tiles, and blocks into passes: one pass multiplies several blocks by the whole
// weight. Packed rows of a pass fit in kTuning.shared_tile_bytes.
template <class Micro>
struct RowBlocks {
  int64_t num_rows, row_bytes, block_rows, count, blocks_per_pass;

  RowBlocks(int64_t num_rows, int64_t k, bool are_in_place) : num_rows(num_rows), row_bytes(tile_row_bytes(k)) {
    block_rows = round_up(ceil_div(num_rows, ceil_div(num_rows, kTuning.row_block)), kTileRows);
    count = ceil_div(num_rows, block_rows);
    const int64_t max_blocks =
        are_in_place ? kInPlaceBlocksPerPass : larger(1, kTuning.shared_tile_bytes / (block_rows * row_bytes));
    blocks_per_pass = ceil_div(count, ceil_div(count, max_blocks));
  }

  static int64_t tile_row_bytes(int64_t k) { return larger(1, ceil_div(k, kLineK<Micro>)) * kLineBytes; }

  int64_t num_tiles() const { return block_rows / kTileRows; }  // of a block
  int64_t begin(int64_t block) const { return block * block_rows; }
  int64_t size(int64_t block) const { return smaller(block_rows, num_rows - begin(block)); }

  // Bytes of the tiles that one worker packs in a pass over at most `num_rows` rows.
  static int64_t bytes_per_worker(int64_t num_rows, int64_t k, int32_t num_workers) {
    const int64_t row_bytes = tile_row_bytes(k);
    const int64_t rows =
        smaller(num_rows + kTuning.row_block, larger(kTuning.row_block, kTuning.shared_tile_bytes / row_bytes));
    return ceil_div(ceil_div(rows, kTileRows), num_workers) * kTileRows * row_bytes;
  }
};

// The tiles of x [num_rows, K]. Packed tiles are numbered within their pass: worker w holds every num_workers-th, from
// number w on.
template <class Micro, class T>
class ActivationTiles {
 public:
  ActivationTiles(const T* x, int64_t num_rows, int64_t k, const am_team* team, int64_t offset_bytes)
      : blocks(num_rows, k, can_read_in_place<Micro, T>(k)), x_(x), k_(k), team_(team), offset_bytes_(offset_bytes) {}

  const RowBlocks<Micro> blocks;

  // Called by every worker: packs the `count` blocks of the pass that begins with block `first`. The tiles of the pass
  // before are overwritten.
  AETHER_INLINE void pack(int64_t first, int64_t count) const {
    if (can_read_in_place<Micro, T>(k_)) return;
    if (first > 0) team_->barrier(team_);  // until no worker reads the tiles of the pass before
    for (int64_t number = team_->worker; number < count * blocks.num_tiles(); number += team_->num_workers) {
      const int64_t block = first + number / blocks.num_tiles(), tile = number % blocks.num_tiles();
      const TileSplit split(blocks.size(block));
      if (tile >= split.count) continue;
      const T* rows = row(block, split, tile);
      pack_tile<Micro>([&](int64_t r) { return rows + r * k_; }, split.size(tile), 0, k_, packed(number));
    }
    team_->barrier(team_);
  }

  // Tile `tile` of `split`, the tiles of block `block`, from column `k_begin` on, in the pass that begins with `first`.
  AETHER_INLINE Tile at(int64_t first, int64_t block, const TileSplit& split, int64_t tile, int64_t k_begin) const {
    if (can_read_in_place<Micro, T>(k_)) {
      return {reinterpret_cast<const char*>(row(block, split, tile) + k_begin), k_ * static_cast<int64_t>(sizeof(T)),
              kLineBytes};
    }
    const int64_t num_rows = split.size(tile), number = (block - first) * blocks.num_tiles() + tile;
    return packed_tile(packed(number) + num_rows * (k_begin / kLineK<Micro>)*kLineBytes, num_rows);
  }

 private:
  const T* row(int64_t block, const TileSplit& split, int64_t tile) const {
    return x_ + (blocks.begin(block) + split.begin(tile)) * k_;
  }

  char* packed(int64_t number) const {
    char* scratch = static_cast<char*>(team_->scratch_of(team_, static_cast<int32_t>(number % team_->num_workers)));
    return scratch + offset_bytes_ + number / team_->num_workers * kTileRows * blocks.row_bytes;
  }

  const T* x_;
  int64_t k_;
  const am_team* team_;
  int64_t offset_bytes_;
};

// Indivisible items of some panels each, split into groups that get smaller towards the end (guided self-scheduling,
// Polychronopoulos and Kuck, 1987), so that workers finish together. A group is multiplied by `num_blocks` blocks of
// rows, each of them a claim.
struct ItemGroups {
  int64_t num_items, max_size, granularity, num_blocks, num_claims;

  ItemGroups(int64_t num_items, int64_t panels_per_item, int64_t num_blocks, int32_t num_workers)
      : num_items(num_items),
        max_size(larger(1, kTuning.panel_group / panels_per_item)),
        granularity(larger(1, kMaxTilePanels / panels_per_item)),
        num_blocks(num_blocks),
        num_claims(kMinClaimsPerWorker * num_workers) {}

  // Items of the group that begins with item `begin`.
  int64_t size(int64_t begin) const {
    const int64_t remaining = num_items - begin,
                  even = round_up(ceil_div(remaining * num_blocks, num_claims), granularity);
    return smaller(remaining, smaller(max_size, even));
  }
  int64_t count() const {
    int64_t groups = 0;
    for (int64_t begin = 0; begin < num_items; begin += size(begin)) ++groups;
    return groups;
  }
};

constexpr int64_t large_accumulator_bytes(int64_t panels_per_item) {
  const int64_t panels = panels_per_item > kTuning.panel_group ? panels_per_item : kTuning.panel_group;
  return kTuning.row_block * panels * kPanelColumns * static_cast<int64_t>(sizeof(float));
}

// Scratch of gemm_large for at most `num_rows` rows: accumulators, then this worker's packed tiles.
template <class Micro, class T>
size_t large_scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t num_workers) {
  const int64_t tile_bytes =
      can_read_in_place<Micro, T>(k) ? 0 : RowBlocks<Micro>::bytes_per_worker(num_rows, k, num_workers);
  return static_cast<size_t>(large_accumulator_bytes(panels_per_item) + tile_bytes);
}

// One worker's part; see DenseWeight::for_each_block.
template <class Micro, class T, class PanelFn, class FinishFn>
AETHER_INLINE void gemm_large(const T* x, int64_t num_rows, int64_t k, int64_t num_items, int64_t panels_per_item,
                              const am_team* team, PanelFn panel, FinishFn finish) {
  const int64_t sum_bytes = large_accumulator_bytes(panels_per_item);
  const ActivationTiles<Micro, T> tiles(x, num_rows, k, team, sum_bytes);
  const RowBlocks<Micro>& rows = tiles.blocks;
  const ItemGroups groups(num_items, panels_per_item, rows.blocks_per_pass, team->num_workers);
  const int64_t num_groups = groups.count();
  float* c = static_cast<float*>(team->scratch);

  // A block of rows, of the pass that begins with block `first`, by `count` items of a group; `after` is the panel that
  // follows them. The first items of a claim find the tiles outside this core's caches (`is_first`).
  const auto multiply = [&](int64_t first, int64_t block, int64_t item, int64_t count, bool is_first,
                            const char* after) __attribute__((always_inline)) {
    const int64_t num_panels = count * panels_per_item, size = rows.size(block);
    const TileSplit split(size);
    const char* panels[kMaxPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item, count, p);
    for (int64_t k_begin = 0; k_begin < k; k_begin += kTuning.k_block) {
      const int64_t k_count = smaller(kTuning.k_block, k - k_begin), k_end = k_begin + k_count;
      multiply_each_tile<Micro>([&](int64_t tile) { return tiles.at(first, block, split, tile, k_begin); }, size,
                                k_count, panels, num_panels, k_begin / Micro::kStepK * kStepBytes, k_begin == 0, c,
                                k_end < k ? panels[0] + k_end / Micro::kStepK * kStepBytes : after, is_first);
    }
    finish(rows.begin(block), size, item, count, c, num_panels * kPanelColumns);
  };

  int64_t ticket = team->claim(team);
  for (int64_t first = 0; first < rows.count; first += rows.blocks_per_pass) {
    const int64_t num_blocks = smaller(rows.blocks_per_pass, rows.count - first), first_ticket = first * num_groups;
    tiles.pack(first, num_blocks);
    int64_t group = 0, begin = 0;  // tickets ascend, so the walk over the groups continues where it stopped
    for (; ticket < first_ticket + num_blocks * num_groups; ticket = team->claim(team)) {
      // Row blocks vary fastest: the workers then share one group's weights in the outer caches.
      const int64_t index = (ticket - first_ticket) % num_blocks;
      for (; group < (ticket - first_ticket) / num_blocks; ++group) begin += groups.size(begin);
      const int64_t end = begin + groups.size(begin);
      // This worker's next claim usually comes after one claim of every other worker.
      const int64_t next = index + team->num_workers < num_blocks ? begin : smaller(end, num_items - 1);
      const int64_t items_per_epilogue =
          k <= kTuning.k_block ? larger(1, kEpiloguePanels / panels_per_item) : end - begin;
      for (int64_t item = begin; item < end; item += items_per_epilogue) {
        const int64_t count = smaller(items_per_epilogue, end - item);
        multiply(first, first + index, item, count, item == begin,
                 panel(item + count < end ? item + count : next, 1, 0));
      }
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
