// A matrix product of many rows (prefill), which is bound by arithmetic: cutting it into blocks that fit a core's
// caches, and handing them to the workers.
//
// First all workers together bring the rows into tiles (gemm.h): each keeps some of them in its scratch, where all read
// them. Then a claim is a block of rows by a group of panels. It is walked kBlockK of K at a time, so that its tiles
// (288 KiB of bfloat16), its sums (144 KiB) and two panels' slice (64 KiB) stay in a second-level cache of 1 MiB.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kRowBlock = 144;
inline constexpr int64_t kBlockK = 1024;
inline constexpr int64_t kGroupPanels = 16;
inline constexpr int64_t kFinishedPanels = 4;  // at a time, whose sums have not left the first-level cache by then
inline constexpr int64_t kMostPanels = 64;     // of a group, whose items may have more than kGroupPanels
inline constexpr int64_t kClaimsLeft = 4;      // for every worker, at least, in what is left of the columns
inline constexpr int64_t kSharedTileBytes = 1400 * 1024;  // rows that need more come in several runs, each from near

// Rows cut into blocks of several tiles, and those into runs of several blocks whose tiles are there at the same time.
template <class E>
struct RowBlocks {
  int64_t num_rows, row_bytes, block_rows, count, run;

  RowBlocks(int64_t num_rows, int64_t k) : num_rows(num_rows), row_bytes(tile_row_bytes(k)) {
    block_rows = round_up(divide_up(num_rows, divide_up(num_rows, kRowBlock)), kTileRows);
    count = divide_up(num_rows, block_rows);
    run = divide_up(count, divide_up(count, larger(1, kSharedTileBytes / (block_rows * row_bytes))));
  }

  static int64_t tile_row_bytes(int64_t k) { return larger(1, divide_up(k, kLineK<E>)) * kLineBytes; }

  int64_t num_tiles() const { return block_rows / kTileRows; }  // of a block
  int64_t begin(int64_t block) const { return block * block_rows; }
  int64_t size(int64_t block) const { return smaller(block_rows, num_rows - begin(block)); }

  // Bytes of a worker's tiles of a run, at most, of up to so many rows.
  static int64_t bytes_of_worker(int64_t num_rows, int64_t k, int32_t num_workers) {
    const int64_t row_bytes = tile_row_bytes(k);
    const int64_t rows = smaller(num_rows + kRowBlock, larger(kRowBlock, kSharedTileBytes / row_bytes));
    return divide_up(divide_up(rows, kTileRows), num_workers) * kTileRows * row_bytes;
  }
};

// The tiles of a run of row blocks, numbered through: worker w has every num_workers-th, from number w on.
template <class E>
class SharedTiles {
 public:
  SharedTiles(const RowBlocks<E>& rows, const am_team* team, size_t offset_bytes)
      : rows_(rows), team_(team), offset_bytes_(offset_bytes) {}

  // This worker's part of the tiles of `count` blocks from block `first` on.
  template <class T>
  AETHER_INLINE void pack(const T* x, int64_t k, int64_t first, int64_t count) const {
    for (int64_t number = team_->worker; number < count * rows_.num_tiles(); number += team_->num_workers) {
      const int64_t block = first + number / rows_.num_tiles(), tile = number % rows_.num_tiles();
      const Tiles cut(rows_.size(block));
      if (tile >= cut.count) continue;
      const T* row = x + (rows_.begin(block) + cut.begin(tile)) * k;
      pack_tile<E>([&](int64_t r) { return row + r * k; }, cut.size(tile), 0, k, at(number));
    }
  }

  char* at(int64_t number) const {
    char* scratch = static_cast<char*>(team_->scratch_of(team_, static_cast<int32_t>(number % team_->num_workers)));
    return scratch + offset_bytes_ + number / team_->num_workers * kTileRows * rows_.row_bytes;
  }

 private:
  const RowBlocks<E>& rows_;
  const am_team* team_;
  size_t offset_bytes_;
};

// Indivisible items of some panels each, cut into groups that become smaller to the end, where the workers have to come
// to it together: a group meets `num_blocks` blocks of rows, each of them a claim.
struct ItemGroups {
  int64_t num_items, most, together, num_blocks, num_claims;

  ItemGroups(int64_t num_items, int64_t panels_per_item, int64_t num_blocks, int32_t num_workers)
      : num_items(num_items),
        most(larger(1, kGroupPanels / panels_per_item)),
        together(larger(1, kMostTilePanels / panels_per_item)),
        num_blocks(num_blocks),
        num_claims(kClaimsLeft * num_workers) {}

  // Items of the group that begins with item `begin`.
  int64_t size(int64_t begin) const {
    const int64_t left = num_items - begin, even = round_up(divide_up(left * num_blocks, num_claims), together);
    return smaller(left, smaller(most, even));
  }
  int64_t count() const {
    int64_t groups = 0;
    for (int64_t begin = 0; begin < num_items; begin += size(begin)) ++groups;
    return groups;
  }
};

constexpr int64_t many_rows_sum_bytes(int64_t panels_per_item) {
  const int64_t panels = panels_per_item > kGroupPanels ? panels_per_item : kGroupPanels;
  return kRowBlock * panels * kPanelColumns * static_cast<int64_t>(sizeof(float));
}

// Scratch of for_each_block_of_many for at most `num_rows` rows.
template <class E>
size_t many_rows_scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t num_workers) {
  return static_cast<size_t>(many_rows_sum_bytes(panels_per_item) +
                             RowBlocks<E>::bytes_of_worker(num_rows, k, num_workers));
}

// One worker's part; see DenseWeight::for_each_block.
template <class E, class T, class PanelFn, class FinishFn>
AETHER_INLINE void for_each_block_of_many(const T* x, int64_t num_rows, int64_t k, int64_t num_items,
                                          int64_t panels_per_item, const am_team* team, PanelFn panel,
                                          FinishFn finish) {
  const RowBlocks<E> rows(num_rows, k);
  const ItemGroups groups(num_items, panels_per_item, rows.run, team->num_workers);
  const int64_t num_groups = groups.count();
  const int64_t sum_bytes = many_rows_sum_bytes(panels_per_item);
  float* c = static_cast<float*>(team->scratch);
  const SharedTiles<E> tiles(rows, team, static_cast<size_t>(sum_bytes));

  // A block of rows, whose tiles are numbered from `first_tile` on, by `count` items of a group; `after` is the panel
  // that follows them. The first items that meet the tiles have to wait for them.
  const auto multiply = [&](int64_t block, int64_t first_tile, int64_t item, int64_t count, bool is_first,
                            const char* after) __attribute__((always_inline)) {
    const int64_t num_panels = count * panels_per_item, size = rows.size(block);
    const Tiles cut(size);
    const char* panels[kMostPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item, count, p);
    for (int64_t k_begin = 0; k_begin < k; k_begin += kBlockK) {
      const int64_t k_count = smaller(kBlockK, k - k_begin), k_end = k_begin + k_count;
      const auto tile_at = [&](int64_t tile) {
        return tiles.at(first_tile + tile) + cut.size(tile) * (k_begin / kLineK<E>)*kLineBytes;
      };
      multiply_each_tile<E>(tile_at, size, k_count, panels, num_panels, k_begin / E::kStepK * kStepBytes, k_begin == 0,
                            c, k_end < k ? panels[0] + k_end / E::kStepK * kStepBytes : after, is_first);
    }
    finish(rows.begin(block), size, item, count, c, num_panels * kPanelColumns);
  };

  int64_t ticket = team->claim(team);
  for (int64_t first = 0; first < rows.count; first += rows.run) {
    const int64_t num_blocks = smaller(rows.run, rows.count - first), first_ticket = first * num_groups;
    if (first > 0) team->barrier(team);  // nobody reads the tiles of the run before any more
    tiles.pack(x, k, first, num_blocks);
    team->barrier(team);
    int64_t group = 0, begin = 0;  // tickets ascend, so the walk over the groups goes on where it stopped
    for (; ticket < first_ticket + num_blocks * num_groups; ticket = team->claim(team)) {
      // Row blocks run fastest: the workers then share one group's weights in the outer caches.
      const int64_t index = (ticket - first_ticket) % num_blocks;
      for (; group < (ticket - first_ticket) / num_blocks; ++group) begin += groups.size(begin);
      const int64_t end = begin + groups.size(begin);
      // What this worker probably claims next comes after a claim of every other.
      const int64_t next = index + team->num_workers < num_blocks ? begin : smaller(end, num_items - 1);
      const int64_t together = k <= kBlockK ? larger(1, kFinishedPanels / panels_per_item) : end - begin;
      for (int64_t item = begin; item < end; item += together) {
        const int64_t count = smaller(together, end - item);
        multiply(first + index, index * rows.num_tiles(), item, count, item == begin,
                 panel(item + count < end ? item + count : next, 1, 0));
      }
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
