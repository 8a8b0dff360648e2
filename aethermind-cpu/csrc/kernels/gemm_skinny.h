// Skinny GEMM: products of up to kTuning.gemv_max_rows rows (decode), which are bound by reading the weight. A block is
// a range of whole panels that is read once, front to back, for all rows.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kMinSkinnyClaimBytes = 64 * 1024;  // the least of the weight that a worker claims at once

// The columns come in `num_items` indivisible items of `panels_per_item` panels: a panel, a gate with its up, a head.
struct SkinnySplit {
  int64_t num_rows, k, num_items, panels_per_item;
  int64_t items_at_once;  // items whose panels a tile kernel multiplies at once
  int64_t min_claim;      // items
  int64_t max_block;      // items whose accumulators fit in scratch

  SkinnySplit(int64_t num_rows, int64_t k, int64_t steps, int64_t num_items, int64_t panels_per_item)
      : num_rows(num_rows), k(k), num_items(num_rows == 0 ? 0 : num_items), panels_per_item(panels_per_item) {
    items_at_once = larger(1, kMaxTilePanels / panels_per_item);
    min_claim = ceil_div(kMinSkinnyClaimBytes, panels_per_item * steps * kStepBytes);
    max_block = larger(1, kMaxPanels / panels_per_item);
  }
};

template <class Micro>
size_t skinny_tile_bytes(int64_t num_rows, int64_t k) {
  return static_cast<size_t>(smaller(num_rows, kTuning.gemv_max_rows) * round_up(k, kLineK<Micro>)) *
         sizeof(typename Micro::Activation);
}

// Scratch of gemm_skinny for at most `num_rows` rows: packed rows, then accumulators.
template <class Micro>
size_t skinny_scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item) {
  const int64_t sums = smaller(num_rows, kTuning.gemv_max_rows) * larger(kMaxPanels, panels_per_item) * kPanelColumns;
  return skinny_tile_bytes<Micro>(num_rows, k) + static_cast<size_t>(sums) * sizeof(float);
}

// Multiplies `num_rows` rows of K values by `num_panels` panels. `tiles` holds the rows packed, unless `are_packed` is
// false: they are packed then. `next` is the panel that is multiplied afterwards. Sets C.
template <class Micro, class RowFn>
AETHER_INLINE void multiply_skinny(RowFn row, int64_t num_rows, int64_t k, bool are_packed, const char* const* panels,
                                   int64_t num_panels, const char* next, char* tiles, float* c) {
  const int64_t k_block = num_rows <= kTileRows ? k : kTuning.k_block;
  for (int64_t k_begin = 0; k_begin < k; k_begin += k_block) {
    const int64_t k_count = smaller(k_block, k - k_begin), k_end = k_begin + k_count;
    char* part = tiles + num_rows * k_begin * static_cast<int64_t>(sizeof(typename Micro::Activation));
    if (!are_packed) pack_tiles<Micro>(row, num_rows, k_begin, k_count, part);
    multiply_tiles<Micro>(part, num_rows, k_count, panels, num_panels, k_begin / Micro::kStepK * kStepBytes,
                          k_begin == 0, c, k_end < k ? panels[0] + k_end / Micro::kStepK * kStepBytes : next);
  }
}

// One worker's part; see DenseWeight::for_each_block.
template <class Micro, class T, class PanelFn, class FinishFn>
AETHER_INLINE void gemm_skinny(const SkinnySplit& cut, const T* x, const am_team* team, PanelFn panel,
                               FinishFn finish) {
  char* tiles = static_cast<char*>(team->scratch);
  float* c = reinterpret_cast<float*>(tiles + skinny_tile_bytes<Micro>(cut.num_rows, cut.k));
  bool are_packed = false;
  const auto work = [&](int64_t item_begin, int64_t num_items) {
    const int64_t num_panels = num_items * cut.panels_per_item;
    const char* panels[kMaxPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item_begin, num_items, p);
    const char* next = panel(smaller(item_begin + num_items, cut.num_items - 1), 1, 0);  // usually the next block's
    multiply_skinny<Micro>([&](int64_t r) { return x + r * cut.k; }, cut.num_rows, cut.k, are_packed, panels,
                           num_panels, next, tiles, c);
    are_packed = true;
    finish(0, cut.num_rows, item_begin, num_items, c, num_panels * kPanelColumns);
  };
  for_each_chunk(team, cut.num_items, cut.items_at_once, cut.min_claim, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item += cut.max_block) work(item, smaller(cut.max_block, end - item));
  });
}

}  // namespace aether::cpu::AETHER_ISA
