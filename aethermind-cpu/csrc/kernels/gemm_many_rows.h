// A matrix product of many rows (prefill), which is bound by arithmetic: cutting it into blocks that fit a core's
// caches, and handing them to the workers.
//
// Rows that hold what a tile kernel multiplies are read where they lie. Others all workers together bring into tiles
// first (gemm.h): each keeps some of them in its scratch, where all read them. Then a claim is a block of rows by a
// group of panels. It is walked kBlockK of K at a time, so that its tiles (288 KiB of bfloat16), its sums (144 KiB) and
// two panels' slice (64 KiB) stay in a second-level cache of 1 MiB.
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
inline constexpr int64_t kRunBlocks = 5;                  // of rows that are read where they lie
inline constexpr int64_t kCrowdingBytes = 8 * 1024;       // rows so far apart, or a multiple, share few sets of a cache

// Whether tile kernels can read rows of K values where they lie: as lanes, of which the last step is whole.
template <class E, class T>
constexpr bool are_read_in_place(int64_t k) {
  const int64_t row_bytes = k * static_cast<int64_t>(sizeof(T));
  return E::kReadsInPlace && k % E::kStepK == 0 && row_bytes % kCrowdingBytes != 0;
}

// Rows cut into blocks of several tiles, and those into runs of several blocks, which meet the whole weight before the
// next run does.
template <class E>
struct RowBlocks {
  int64_t num_rows, row_bytes, block_rows, count, run;

  RowBlocks(int64_t num_rows, int64_t k, bool are_in_place) : num_rows(num_rows), row_bytes(tile_row_bytes(k)) {
    block_rows = round_up(divide_up(num_rows, divide_up(num_rows, kRowBlock)), kTileRows);
    count = divide_up(num_rows, block_rows);
    const int64_t most = are_in_place ? kRunBlocks : larger(1, kSharedTileBytes / (block_rows * row_bytes));
    run = divide_up(count, divide_up(count, most));
  }

  static int64_t tile_row_bytes(int64_t k) { return larger(1, divide_up(k, kLineK<E>)) * kLineBytes; }

  int64_t num_tiles() const { return block_rows / kTileRows; }  // of a block
  int64_t begin(int64_t block) const { return block * block_rows; }
  int64_t size(int64_t block) const { return smaller(block_rows, num_rows - begin(block)); }

  // Bytes of a worker's tiles of a run that is brought, at most, of up to so many rows.
  static int64_t bytes_of_worker(int64_t num_rows, int64_t k, int32_t num_workers) {
    const int64_t row_bytes = tile_row_bytes(k);
    const int64_t rows = smaller(num_rows + kRowBlock, larger(kRowBlock, kSharedTileBytes / row_bytes));
    return divide_up(divide_up(rows, kTileRows), num_workers) * kTileRows * row_bytes;
  }
};

// The tiles of x [num_rows, K]. Those of a run that is brought are numbered through: worker w has every
// num_workers-th, from number w on.
template <class E, class T>
class RowTiles {
 public:
  RowTiles(const T* x, int64_t num_rows, int64_t k, const am_team* team, int64_t offset_bytes)
      : blocks(num_rows, k, are_read_in_place<E, T>(k)), x_(x), k_(k), team_(team), offset_bytes_(offset_bytes) {}

  const RowBlocks<E> blocks;

  // By every worker: afterwards the tiles of `count` blocks from block `first` on are there, and those of the run
  // before no longer.
  AETHER_INLINE void bring(int64_t first, int64_t count) const {
    if (are_read_in_place<E, T>(k_)) return;
    if (first > 0) team_->barrier(team_);  // nobody reads the tiles of the run before any more
    for (int64_t number = team_->worker; number < count * blocks.num_tiles(); number += team_->num_workers) {
      const int64_t block = first + number / blocks.num_tiles(), tile = number % blocks.num_tiles();
      const Tiles cut(blocks.size(block));
      if (tile >= cut.count) continue;
      const T* rows = row(block, cut, tile);
      pack_tile<E>([&](int64_t r) { return rows + r * k_; }, cut.size(tile), 0, k_, brought(number));
    }
    team_->barrier(team_);
  }

  // From column `k_begin` on, tile `tile` of `cut`, which are the tiles of a block of the run that begins with `first`.
  AETHER_INLINE Tile at(int64_t first, int64_t block, const Tiles& cut, int64_t tile, int64_t k_begin) const {
    if (are_read_in_place<E, T>(k_)) {
      return {reinterpret_cast<const char*>(row(block, cut, tile) + k_begin), k_ * static_cast<int64_t>(sizeof(T)),
              kLineBytes};
    }
    const int64_t num_rows = cut.size(tile), number = (block - first) * blocks.num_tiles() + tile;
    return packed_tile(brought(number) + num_rows * (k_begin / kLineK<E>)*kLineBytes, num_rows);
  }

 private:
  const T* row(int64_t block, const Tiles& cut, int64_t tile) const {
    return x_ + (blocks.begin(block) + cut.begin(tile)) * k_;
  }

  char* brought(int64_t number) const {
    char* scratch = static_cast<char*>(team_->scratch_of(team_, static_cast<int32_t>(number % team_->num_workers)));
    return scratch + offset_bytes_ + number / team_->num_workers * kTileRows * blocks.row_bytes;
  }

  const T* x_;
  int64_t k_;
  const am_team* team_;
  int64_t offset_bytes_;
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
template <class E, class T>
size_t many_rows_scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t num_workers) {
  const int64_t tile_bytes = are_read_in_place<E, T>(k) ? 0 : RowBlocks<E>::bytes_of_worker(num_rows, k, num_workers);
  return static_cast<size_t>(many_rows_sum_bytes(panels_per_item) + tile_bytes);
}

// One worker's part; see DenseWeight::for_each_block.
template <class E, class T, class PanelFn, class FinishFn>
AETHER_INLINE void for_each_block_of_many(const T* x, int64_t num_rows, int64_t k, int64_t num_items,
                                          int64_t panels_per_item, const am_team* team, PanelFn panel,
                                          FinishFn finish) {
  const int64_t sum_bytes = many_rows_sum_bytes(panels_per_item);
  const RowTiles<E, T> tiles(x, num_rows, k, team, sum_bytes);
  const RowBlocks<E>& rows = tiles.blocks;
  const ItemGroups groups(num_items, panels_per_item, rows.run, team->num_workers);
  const int64_t num_groups = groups.count();
  float* c = static_cast<float*>(team->scratch);

  // A block of rows, of the run that begins with `first`, by `count` items of a group; `after` is the panel that
  // follows them. The first items that meet the tiles have to wait for them.
  const auto multiply = [&](int64_t first, int64_t block, int64_t item, int64_t count, bool is_first,
                            const char* after) __attribute__((always_inline)) {
    const int64_t num_panels = count * panels_per_item, size = rows.size(block);
    const Tiles cut(size);
    const char* panels[kMostPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item, count, p);
    for (int64_t k_begin = 0; k_begin < k; k_begin += kBlockK) {
      const int64_t k_count = smaller(kBlockK, k - k_begin), k_end = k_begin + k_count;
      multiply_each_tile<E>([&](int64_t tile) { return tiles.at(first, block, cut, tile, k_begin); }, size, k_count,
                            panels, num_panels, k_begin / E::kStepK * kStepBytes, k_begin == 0, c,
                            k_end < k ? panels[0] + k_end / E::kStepK * kStepBytes : after, is_first);
    }
    finish(rows.begin(block), size, item, count, c, num_panels * kPanelColumns);
  };

  int64_t ticket = team->claim(team);
  for (int64_t first = 0; first < rows.count; first += rows.run) {
    const int64_t num_blocks = smaller(rows.run, rows.count - first), first_ticket = first * num_groups;
    tiles.bring(first, num_blocks);
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
        multiply(first, first + index, item, count, item == begin,
                 panel(item + count < end ? item + count : next, 1, 0));
      }
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
