// Cutting a matrix product into blocks, and handing them to the workers.
//
// Few rows (decode) are bound by reading the weight: a block is a run of whole panels read front to back, each once for
// all rows. Many rows: gemm_many_rows.h.
#pragma once

#include "kernels/gemm_many_rows.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kFewRows = 48;
inline constexpr int64_t kMinFewBytes = 64 * 1024;  // enough of the weight to be worth a claim

// The columns come in `num_items` indivisible items of `panels_per_item` panels: a panel, a gate with its up, a head.
struct Blocking {
  int64_t num_rows, k, num_items, panels_per_item, k_block;
  int64_t together;  // items whose panels tile kernels take at once
  int64_t least;     // of a claim
  int64_t most;      // whose sums there is room for

  Blocking(int64_t num_rows, int64_t k, int64_t steps, int64_t num_items, int64_t panels_per_item)
      : num_rows(num_rows), k(k), num_items(num_rows == 0 ? 0 : num_items), panels_per_item(panels_per_item) {
    k_block = num_rows <= kTileRows ? k : kBlockK;
    together = larger(1, kMostTilePanels / panels_per_item);
    least = divide_up(kMinFewBytes, panels_per_item * steps * kStepBytes);
    most = larger(1, kMostPanels / panels_per_item);
  }
};

template <class E>
size_t few_rows_tile_bytes(int64_t num_rows, int64_t k) {
  return static_cast<size_t>(smaller(num_rows, kFewRows) * round_up(k, kLineK<E>)) * sizeof(typename E::Lane);
}

// Scratch of for_each_block_of_few for at most `num_rows` rows.
template <class E>
size_t few_rows_scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item) {
  const int64_t sums = smaller(num_rows, kFewRows) * larger(kMostPanels, panels_per_item) * kPanelColumns;
  return few_rows_tile_bytes<E>(num_rows, k) + static_cast<size_t>(sums) * sizeof(float);
}

// One worker's part; see DenseWeight::for_each_block.
template <class E, class T, class PanelFn, class FinishFn>
AETHER_INLINE void for_each_block_of_few(const Blocking& cut, const T* x, const am_team* team, PanelFn panel,
                                         FinishFn finish) {
  char* tiles = static_cast<char*>(team->scratch);
  float* c = reinterpret_cast<float*>(tiles + few_rows_tile_bytes<E>(cut.num_rows, cut.k));
  bool are_packed = false;
  const auto work = [&](int64_t item_begin, int64_t num_items) {
    const int64_t num_panels = num_items * cut.panels_per_item;
    const char* panels[kMostPanels];
    for (int64_t p = 0; p < num_panels; ++p) panels[p] = panel(item_begin, num_items, p);
    const char* next = panel(smaller(item_begin + num_items, cut.num_items - 1), 1, 0);  // as a rule
    for (int64_t k = 0; k < cut.k; k += cut.k_block) {
      const int64_t k_count = smaller(cut.k_block, cut.k - k), k_next = k + k_count;
      char* part = tiles + cut.num_rows * k * static_cast<int64_t>(sizeof(typename E::Lane));
      if (!are_packed) pack_tiles<E>([&](int64_t r) { return x + r * cut.k; }, cut.num_rows, k, k_count, part);
      multiply_tiles<E>(part, cut.num_rows, k_count, panels, num_panels, k / E::kStepK * kStepBytes, k == 0, c,
                        k_next < cut.k ? panels[0] + k_next / E::kStepK * kStepBytes : next);
    }
    are_packed = true;
    finish(0, cut.num_rows, item_begin, num_items, c, num_panels * kPanelColumns);
  };
  for_each_stretch(team, cut.num_items, cut.together, cut.least, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item += cut.most) work(item, smaller(cut.most, end - item));
  });
}

// A weight of T in panels: what an operator needs to know of how its weights are stored.
template <class T>
class DenseWeight {
 public:
  explicit DenseWeight(const am_tensor& weight)
      : panels_(static_cast<const char*>(weight.data)), k_(weight.shape[1]), steps_(divide_up(k_, Engine<T>::kStepK)) {}

  const char* panel(int64_t index) const { return panels_ + index * steps_ * kStepBytes; }

  // One worker's part of a product of `x` [num_rows, K] and weights that are stored as this one.
  // `panel(item_begin, num_items, p)` is panel p of the block with these items, in an order of the caller's choice.
  // `finish(row_begin, num_rows, item_begin, num_items, c, stride)` takes the finished sums of a block: c[row][p][16],
  // rows `stride` floats apart. It may change them.
  template <class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_block(const T* x, int64_t num_rows, int64_t num_items, int64_t panels_per_item,
                                    const am_team* team, PanelFn panel, FinishFn finish) const {
    using E = Engine<T>;
    if (num_rows > kFewRows) {
      for_each_block_of_many<E>(x, num_rows, k_, num_items, panels_per_item, team, panel, finish);
    } else {
      const Blocking cut(num_rows, k_, steps_, num_items, panels_per_item);
      for_each_block_of_few<E>(cut, x, team, panel, finish);
    }
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t num_workers) {
    using E = Engine<T>;
    const size_t few = few_rows_scratch_bytes<E>(num_rows, k, panels_per_item);
    const size_t many = many_rows_scratch_bytes<E, T>(num_rows, k, panels_per_item, num_workers);
    return num_rows > kFewRows && many > few ? many : few;
  }

 private:
  const char* panels_;
  int64_t k_, steps_;
};

}  // namespace aether::cpu::AETHER_ISA
