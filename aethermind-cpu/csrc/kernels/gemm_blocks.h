// Cutting a matrix product into blocks that fit a core's caches, and handing them to the workers.
//
// Few rows (decode) are bound by reading the weight: a block is a run of whole panels read front to back, each once for
// all rows. Many rows (prefill) are bound by arithmetic: a block is kRowBlock rows by kManyPanels panels, walked
// kBlockK of K at a time, so that the block's tiles (288 KiB of bfloat16), its sums (144 KiB) and two panels' slice (64
// KiB) stay in a second-level cache of 1 MiB.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kFewRows = 48;
inline constexpr int64_t kRowBlock = 144;
inline constexpr int64_t kBlockK = 1024;
inline constexpr int64_t kFewPanels = 64;
inline constexpr int64_t kManyPanels = 16;
inline constexpr int64_t kMinFewBytes = 128 * 1024;  // enough of the weight to be worth a claim

// The columns come in `num_items` indivisible items of `panels_per_item` panels: a panel, a gate with its up, a head.
struct Blocking {
  int64_t num_rows, k, num_items, panels_per_item, row_block, num_row_blocks, k_block, group, num_groups;
  bool keeps_tiles;  // of all of K, from claim to claim

  Blocking(int64_t num_rows, int64_t k, int64_t steps, int64_t num_items, int64_t panels_per_item, int32_t num_workers)
      : num_rows(num_rows), k(k), num_items(num_items), panels_per_item(panels_per_item) {
    const bool is_few = num_rows <= kFewRows;
    row_block = is_few ? kFewRows : round_up(divide_up(num_rows, divide_up(num_rows, kRowBlock)), kTileRows);
    num_row_blocks = larger(1, divide_up(num_rows, row_block));
    k_block = num_rows <= kTileRows ? k : kBlockK;
    keeps_tiles = num_row_blocks == 1 && (is_few || k <= kBlockK);
    const int64_t most = larger(1, (is_few ? kFewPanels : kManyPanels) / panels_per_item);
    const int64_t least = is_few ? divide_up(kMinFewBytes, panels_per_item * steps * kStepBytes) : 1;
    const int64_t even = divide_up(num_items, divide_up((is_few ? 8 : 4) * num_workers, num_row_blocks));
    const int64_t together = larger(1, kMostTilePanels / panels_per_item);
    group = smaller(round_up(larger(even, least), together), most);
    group = smaller(round_up(divide_up(num_items, divide_up(num_items, group)), together), most);
    num_groups = divide_up(num_items, group);
  }

  int64_t num_blocks() const { return num_rows == 0 ? 0 : num_row_blocks * num_groups; }
};

template <class E>
size_t tile_bytes(int64_t num_rows, int64_t k) {
  const int64_t few = smaller(num_rows, kFewRows) * round_up(k, kLineK<E>);
  const int64_t many = smaller(num_rows, kRowBlock) * round_up(smaller(k, kBlockK), kLineK<E>);
  return static_cast<size_t>(larger(few, many)) * sizeof(typename E::Lane);
}

// Scratch of for_each_block for at most `num_rows` rows.
template <class E>
size_t block_scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item) {
  const int64_t few = smaller(num_rows, kFewRows) * larger(kFewPanels, panels_per_item);
  const int64_t many = smaller(num_rows, kRowBlock) * larger(kManyPanels, panels_per_item);
  return tile_bytes<E>(num_rows, k) + static_cast<size_t>(larger(few, many) * kPanelColumns) * sizeof(float);
}

// One worker's part. `panel(item_begin, num_items, p)` is panel p of the block with these items, in an order of the
// caller's choice. `finish(row_begin, num_rows, item_begin, num_items, c, stride)` takes the finished sums of a block:
// c[row][p][16], rows `stride` floats apart. It may change them.
template <class E, class T, class PanelFn, class FinishFn>
AETHER_INLINE void for_each_block(const Blocking& cut, const T* x, const am_team* team, PanelFn panel,
                                  FinishFn finish) {
  char* tiles = static_cast<char*>(team->scratch);
  float* c = reinterpret_cast<float*>(tiles + tile_bytes<E>(cut.num_rows, cut.k));
  const int64_t num_blocks = cut.num_blocks();
  bool are_packed = false;
  for_each_claimed(team, num_blocks, [&](int64_t block) {
    // Row blocks run fastest: the workers then share one group's weights in the outer caches.
    const int64_t row_begin = block % cut.num_row_blocks * cut.row_block;
    const int64_t num_rows = smaller(cut.row_block, cut.num_rows - row_begin);
    const int64_t item_begin = block / cut.num_row_blocks * cut.group;
    const int64_t num_items = smaller(cut.group, cut.num_items - item_begin);
    const int64_t num_panels = num_items * cut.panels_per_item;
    if (num_rows <= 0) return;
    const char* panels[kFewPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item_begin, num_items, p);
    // What this worker probably claims next comes after a claim of every other.
    const int64_t next_item = (block + team->num_workers) / cut.num_row_blocks * cut.group;
    const char* next = panel(smaller(next_item, cut.num_items - 1), 1, 0);
    for (int64_t k = 0; k < cut.k; k += cut.k_block) {
      const int64_t k_count = smaller(cut.k_block, cut.k - k), k_next = k + k_count;
      char* part = cut.keeps_tiles ? tiles + num_rows * k * static_cast<int64_t>(sizeof(typename E::Lane)) : tiles;
      if (!are_packed)
        pack_tiles<E>([&](int64_t r) { return x + (row_begin + r) * cut.k; }, num_rows, k, k_count, part);
      multiply_tiles<E>(part, num_rows, k_count, panels, num_panels, k / E::kStepK * kStepBytes, k == 0, c,
                        k_next < cut.k ? panels[0] + k_next / E::kStepK * kStepBytes : next);
    }
    are_packed = cut.keeps_tiles;
    finish(row_begin, num_rows, item_begin, num_items, c, num_panels * kPanelColumns);
  });
}

// A weight of T in panels: what an operator needs to know of how its weights are stored.
template <class T>
class DenseWeight {
 public:
  explicit DenseWeight(const am_tensor& weight)
      : panels_(static_cast<const char*>(weight.data)), k_(weight.shape[1]), steps_(divide_up(k_, Engine<T>::kStepK)) {}

  const char* panel(int64_t index) const { return panels_ + index * steps_ * kStepBytes; }

  // See for_each_block; `x` has `num_rows` rows, and other weights among the panels are stored as this one.
  template <class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_block(const T* x, int64_t num_rows, int64_t num_items, int64_t panels_per_item,
                                    const am_team* team, PanelFn panel, FinishFn finish) const {
    const Blocking cut(num_rows, k_, steps_, num_items, panels_per_item, team->num_workers);
    cpu::AETHER_ISA::for_each_block<Engine<T>>(cut, x, team, panel, finish);
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item) {
    return block_scratch_bytes<Engine<T>>(num_rows, k, panels_per_item);
  }

 private:
  const char* panels_;
  int64_t k_, steps_;
};

}  // namespace aether::cpu::AETHER_ISA
