// Register-tiled matrix product under linear, lm_head, gate_up_silu, qkv_rope_cache_write and attention: C = X · Wᵀ in
// float32.
//
// The weight comes in panels of 16 columns (pack.h), the rows of X in tiles of up to kTileRows. A tile kernel
// multiplies one tile by a few panels and keeps all accumulators in registers. A packed tile is
//
//   tile [K lines][rows][64 bytes]
//
// where a line is 64 bytes of one row: aligned and zero-padded, whatever K, stride and alignment the activations have.
// Some microkernels also read rows in place, a stride apart.
//
// Batch invariance: every element of C is one FMA chain over ascending K, whatever the blocking. A row's result depends
// neither on the other rows of the batch nor on the number of workers.
#pragma once

#include <cstring>

#include "kernels/microkernels.h"
#include "kernels/pack.h"
#include "kernels/rope.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kMaxPanels = 64;  // of a block; an item may have more than kTuning.panel_group

// Steps between two prefetches of a tile kernel.
inline constexpr int64_t kStepsPerPrefetch = 8;

// Prefetches a cache line into the second-level cache. The first-level cache holds the operands of the tile;
// prefetching into it would evict them.
AETHER_INLINE void prefetch_line(const void* line) { __builtin_prefetch(line, 0, 2); }

// What a tile kernel prefetches, interleaved with its arithmetic. An interval is kStepsPerPrefetch steps, or a k-group
// of quantised weights.
struct Prefetch {
  int64_t distance = 0;  // bytes from the panel's begin to the first line prefetched
  int64_t count = 0;     // lines of each panel in every interval, one after another
  // Bytes to the next tile if it is outside the caches: one line of it per line of this tile.
  int64_t rows_distance = 0;
};

// Splits the prefetch of the next panels (`num_lines` lines each, `distance` bytes ahead) among `num_tiles` tiles that
// multiply the same panels in `num_intervals` intervals each. A tile prefetches one contiguous range, so that requests
// to memory are spread over all of the arithmetic. Returns the share of tile number `tile`; shares overlap where they
// do not divide evenly.
AETHER_INLINE Prefetch prefetch_share(int64_t distance, int64_t num_lines, int64_t num_intervals, int64_t tile,
                                      int64_t num_tiles) {
  const int64_t num_shares = smaller(num_tiles, larger(1, ceil_div(num_lines, larger(1, num_intervals))));
  if (tile >= num_shares) return {};
  const int64_t count = ceil_div(num_lines, larger(1, num_shares * num_intervals));
  const int64_t remaining = larger(0, num_lines - count * num_intervals);
  return {distance + remaining * tile / larger(1, num_shares - 1) * kLineBytes, count};
}

// The fewest rows that a tile has where several tiles share the rows (TileSplit).
inline constexpr int kMinRowsOfSplitTiles = (kTileRows + 1) / 2;

// Prefetch distance of a single tile that multiplies every panel: one or two rows are bound by memory, more rows use
// `farther`.
constexpr int64_t prefetch_distance(int64_t rows, int64_t farther) {
  return rows <= 2 ? kTuning.gemv_prefetch_bytes : farther;
}

// Arguments of a tile kernel: one tile by P panels over `num_steps` steps.
struct TileArgs {
  Tile x;
  const char* const* panels;
  int64_t num_steps;
  Prefetch prefetch;
  float* c;              // accumulators of row r and panel p: c[r * row_stride + p * panel_stride …]
  int64_t row_stride;    // floats
  int64_t panel_stride;  // floats
  bool is_first;         // whether C is set; otherwise the product is added to it
};

template <class Micro, int R, int P>
__attribute__((noinline)) void multiply_tile(const TileArgs& args) {
  constexpr int64_t kActivationBytes = kLineBytes / kLineSteps<Micro>;
  constexpr bool kMayPrefetch = R >= kTuning.min_prefetch_rows || R >= kMinRowsOfSplitTiles;
  static_assert(kLineSteps<Micro> % kStepsPerPrefetch == 0);
  const int64_t num_steps = args.num_steps, row_stride = args.row_stride, panel_stride = args.panel_stride;
  const Prefetch prefetch = args.prefetch;
  float* c = args.c;
  Vec sums[R][P];
  const char* w[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) w[p] = args.panels[p];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) sums[r][p] = args.is_first ? zero() : load(c + r * row_stride + p * panel_stride);
  }
  TileRows<R, !Micro::kReadsRowsInPlace> x(args.x);
  int64_t step = 0, ahead = prefetch.distance;
  for (; step + kLineSteps<Micro> <= num_steps; step += kLineSteps<Micro>) {
    if (kMayPrefetch && prefetch.rows_distance) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) prefetch_line(x.row(r) + prefetch.rows_distance);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < kLineSteps<Micro>; i += kStepsPerPrefetch) {
      // The same count in every interval keeps the branch predictable.
      for (int64_t j = 0; kMayPrefetch && j < prefetch.count; ++j, ahead += kLineBytes) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) prefetch_line(w[p] + ahead);
      }
#pragma GCC unroll 8
      for (int64_t j = i; j < i + kStepsPerPrefetch; ++j) {
        Micro::template step<R, P>(sums, x, j * kActivationBytes, w, (step + j) * kStepBytes);
      }
    }
    x.next_line();
  }
  for (int64_t i = 0; step < num_steps; ++i, ++step) {
    Micro::template step<R, P>(sums, x, i * kActivationBytes, w, step * kStepBytes);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) store(c + r * row_stride + p * panel_stride, sums[r][p]);
  }
}

using TileKernel = void (*)(const TileArgs&);

// Panels that a tile of so many rows multiplies at once. With few rows a tile of one panel takes two: registers allow
// it, and one panel would have too few independent FMA chains to hide their latency.
constexpr int panels_per_tile(int64_t rows) { return kTilePanels == 1 && 2 * rows <= kTileRows ? 2 : kTilePanels; }
inline constexpr int kMaxTilePanels = panels_per_tile(1);

// Tile kernels by number of rows, of panels_per_tile(rows) panels and of a single one.
template <class Micro>
struct TileKernelTable {
  TileKernel multi_panel[kTileRows + 1] = {};
  TileKernel single_panel[kTileRows + 1] = {};

  template <int R>
  constexpr void fill() {
    multi_panel[R] = multiply_tile<Micro, R, panels_per_tile(R)>;
    single_panel[R] = multiply_tile<Micro, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr TileKernelTable() { fill<kTileRows>(); }

  static const TileKernelTable kAll;  // gemm_kernel_table.h
};

// Split of rows into tiles of nearly equal size.
struct TileSplit {
  int64_t count, rows;

  explicit TileSplit(int64_t num_rows, int64_t max_rows = kTileRows)
      : count(ceil_div(num_rows, max_rows)), rows(num_rows) {}

  int64_t begin(int64_t tile) const { return rows * tile / count; }
  int64_t size(int64_t tile) const { return begin(tile + 1) - begin(tile); }
};

// A packed tile: line by line, the lines of all rows next to each other.
AETHER_INLINE Tile packed_tile(const char* lines, int64_t num_rows) {
  return {lines, kLineBytes, num_rows * kLineBytes};
}

// Copies `count` activations into a line; the rest of the line is zero.
template <class T>
AETHER_INLINE void copy_line(const T* x, int64_t count, float* line) {
  store(line, load(x, count));
}
AETHER_INLINE void copy_line(const BFloat16* x, int64_t count, BFloat16* line) {
  std::memset(line, 0, kLineBytes);
  std::memcpy(line, x, static_cast<size_t>(count) * sizeof(BFloat16));
}
template <class T>
AETHER_INLINE void copy_full_line(const T* x, float* line) {
  store(line, load(x));
}
AETHER_INLINE void copy_full_line(const BFloat16* x, BFloat16* line) { std::memcpy(line, x, kLineBytes); }

// Packs columns [k_begin, k_begin + k_count) of the rows `row(0) … row(num_rows - 1)` into one tile.
template <class Micro, class RowFn>
AETHER_INLINE void pack_tile(RowFn row, int64_t num_rows, int64_t k_begin, int64_t k_count, char* tile) {
  using Activation = typename Micro::Activation;
  for (int64_t r = 0; r < num_rows; ++r) {
    const auto* x = row(r) + k_begin;
    char* target = tile + r * kLineBytes;
    int64_t k = 0;
    for (; k + kLineK<Micro> <= k_count; k += kLineK<Micro>, target += num_rows * kLineBytes) {
      copy_full_line(x + k, reinterpret_cast<Activation*>(target));
    }
    if (k < k_count) copy_line(x + k, k_count - k, reinterpret_cast<Activation*>(target));
  }
}

// Packs any number of rows into tiles, one after another.
template <class Micro, class RowFn>
AETHER_INLINE void pack_tiles(RowFn row, int64_t num_rows, int64_t k_begin, int64_t k_count, char* tiles) {
  const int64_t num_lines = ceil_div(k_count, kLineK<Micro>);
  const TileSplit split(num_rows);
  for (int64_t tile = 0; tile < split.count; ++tile) {
    pack_tile<Micro>([&](int64_t r) { return row(split.begin(tile) + r); }, split.size(tile), k_begin, k_count,
                     tiles + split.begin(tile) * num_lines * kLineBytes);
  }
}

// Multiplies tiles by `num_panels` panels, from `offset` bytes into each panel; C has rows of `num_panels * 16` floats.
// `tile_at(i)` is tile i of TileSplit(num_rows). A tile kernel takes its panels from as many equal parts of the list,
// so that each part is one sequential stream where panels are adjacent in memory. `next` is the panel that is
// multiplied after these (or null) and is prefetched. Tiles that `are_uncached` are prefetched while the
// first panels are multiplied.
template <class Micro, class TileAtFn>
AETHER_INLINE void multiply_each_tile(TileAtFn tile_at, int64_t num_rows, int64_t k_count, const char* const* panels,
                                      int64_t num_panels, int64_t offset, bool is_first, float* c, const char* next,
                                      bool are_uncached = false) {
  const int64_t num_steps = ceil_div(k_count, Micro::kStepK), num_intervals = ceil_div(num_steps, kStepsPerPrefetch);
  const int64_t row_stride = num_panels * kPanelColumns;
  const TileSplit split(num_rows);
  const int64_t panels_per_call = split.count == 1 ? panels_per_tile(num_rows) : kTilePanels;
  const int64_t part_panels = panels_per_call == 1 ? 0 : num_panels / panels_per_call;
  const int64_t num_single = num_panels - part_panels * panels_per_call;
  for (int64_t p = 0; p < part_panels + num_single; ++p) {
    const bool is_single = p >= part_panels;
    const int64_t first = is_single ? part_panels * panels_per_call + (p - part_panels) : p;
    const char* w[kMaxTilePanels];
    for (int64_t i = 0; i < (is_single ? 1 : panels_per_call); ++i) w[i] = panels[first + i * part_panels] + offset;
    const bool is_last = p + 1 == part_panels + num_single;
    const char* following =
        is_last ? next : panels[p + 1 == part_panels ? part_panels * panels_per_call : first + 1] + offset;
    const bool may_prefetch = num_rows >= kTuning.min_prefetch_rows && (split.count == 1 || following);
    const int64_t ahead = prefetch_distance(num_rows, kTuning.skinny_prefetch_bytes);
    const int64_t distance = !may_prefetch ? 0 : split.count == 1 ? ahead : following - w[0];
    for (int64_t tile = 0; tile < split.count; ++tile) {
      const int64_t begin = split.begin(tile), size = split.size(tile);
      const auto& table = TileKernelTable<Micro>::kAll;
      const TileKernel multiply = is_single ? table.single_panel[size] : table.multi_panel[size];
      const Tile x = tile_at(tile);
      Prefetch prefetch =
          may_prefetch ? prefetch_share(distance, num_steps, num_intervals, tile, split.count) : Prefetch();
      prefetch.rows_distance = are_uncached && p == 0 && tile + 1 < split.count ? tile_at(tile + 1).x - x.x : 0;
      multiply({x, w, num_steps, prefetch, c + begin * row_stride + first * kPanelColumns, row_stride,
                part_panels * kPanelColumns, is_first});
    }
  }
}

// The same with packed tiles, one after another.
template <class Micro>
AETHER_INLINE void multiply_tiles(const char* tiles, int64_t num_rows, int64_t k_count, const char* const* panels,
                                  int64_t num_panels, int64_t offset, bool is_first, float* c,
                                  const char* next = nullptr) {
  const int64_t tile_row_bytes = ceil_div(k_count, kLineK<Micro>) * kLineBytes;
  const TileSplit split(num_rows);
  multiply_each_tile<Micro>(
      [&](int64_t tile) { return packed_tile(tiles + split.begin(tile) * tile_row_bytes, split.size(tile)); }, num_rows,
      k_count, panels, num_panels, offset, is_first, c, next);
}

// A single tile by panels that this core's caches hold: prefetches would only compete with the loads. Sets C. Calls
// `between(n)` after every n panels.
template <class Micro, class BetweenFn>
AETHER_INLINE void multiply_cached(const char* tile, int64_t num_rows, int64_t k_count, const char* const* panels,
                                   int64_t num_panels, float* c, BetweenFn between) {
  const int64_t num_steps = ceil_div(k_count, Micro::kStepK), row_stride = num_panels * kPanelColumns;
  const int64_t panels_per_call = panels_per_tile(num_rows);
  const auto& table = TileKernelTable<Micro>::kAll;
  for (int64_t p = 0; p < num_panels;) {
    const bool is_single = p + panels_per_call > num_panels;
    const TileKernel multiply = is_single ? table.single_panel[num_rows] : table.multi_panel[num_rows];
    multiply({packed_tile(tile, num_rows), panels + p, num_steps, Prefetch(), c + p * kPanelColumns, row_stride,
              kPanelColumns, true});
    p += is_single ? 1 : panels_per_call;
    between(is_single ? 1 : panels_per_call);
  }
}

}  // namespace aether::cpu::AETHER_ISA
