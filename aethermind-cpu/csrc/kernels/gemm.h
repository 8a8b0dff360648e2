// The matrix product under linear, lm_head, gate_up_silu, qkv_rope_cache_write and the scores of attention: C = X · Wᵀ
// in float32.
//
// The weight comes in panels of 16 columns (pack.h), the rows of X in tiles of up to kTileRows. A tile kernel
// multiplies a tile by a few panels and keeps all sums in registers. It reads aligned, zero-padded lines next to each
// other, where the rows were copied into scratch,
//
//   tile [K lines][rows][64 bytes]
//
// whatever K, stride and alignment the activations have, or rows as they lie, some distance apart. A line is 64 bytes
// of one row.
//
// Every element of C is one chain of multiply-adds over ascending K, whatever the blocking: a row's result depends
// neither on the other rows of the batch nor on the number of workers.
#pragma once

#include <cstring>

#include "kernels/gemm_engines.h"
#include "kernels/pack.h"
#include "kernels/rope.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Steps for which a tile kernel looks once at what to fetch.
inline constexpr int64_t kStepsAtOnce = 8;

// Fetches a line of what is read next, no nearer than the second-level cache: the first has no room for it beside
// what is computed with. Where lines went to the first, attention of one query took twice as long on a core of Zen 4.
AETHER_INLINE void fetch_line(const void* line) { __builtin_prefetch(line, 0, 2); }

// What a tile kernel fetches beside what it multiplies: in every turn, which is kStepsAtOnce steps or a unit of
// quantised weights, `count` lines of each panel, one after another from `distance` bytes further on.
struct Fetch {
  int64_t distance = 0, count = 0;
  int64_t rows_distance = 0;  // to the next tile, where it is far: a line of it for every line of this one
};

// What tile `tile` of `num_tiles` fetches in `num_turns` turns of a panel's `num_lines` lines, `distance` bytes further
// on: a part of its own, from front to back, so that memory is busy for as long as arithmetic is. Lines that tiles
// fetch in turns come later: eight rows of bfloat16 took up to a fifth longer in AVX2.
AETHER_INLINE Fetch share_of_tile(int64_t distance, int64_t num_lines, int64_t num_turns, int64_t tile,
                                  int64_t num_tiles) {
  const int64_t sharers = smaller(num_tiles, larger(1, divide_up(num_lines, larger(1, num_turns))));
  if (tile >= sharers) return {};
  const int64_t count = divide_up(num_lines, larger(1, sharers * num_turns));
  const int64_t others = larger(0, num_lines - count * num_turns);  // parts overlap where they do not come out even
  return {distance + others * tile / larger(1, sharers - 1) * kLineBytes, count};
}

// With few rows the hardware's prefetcher may keep up by itself (kFewestRowsToFetch); with more, arithmetic takes so
// long that the window of out-of-order execution no longer reaches far enough ahead.
inline constexpr int kFewestRowsOfSeveralTiles = (kTileRows + 1) / 2;  // of each (Tiles)

// How far ahead a single tile fetches that meets every panel: one or two rows are bound by reading alone, more rows
// look `farther`.
constexpr int64_t fetch_ahead_bytes(int64_t rows, int64_t farther) { return rows <= 2 ? kNearFetchBytes : farther; }
inline constexpr int64_t kFetchAheadBytes = 6144;

// One tile by P panels over `num_steps` steps. The sums of row r and panel p are sums[r * row_stride + p *
// column_stride …]; they are set, or with `is_first` false added to.
template <class E, int R, int P>
__attribute__((noinline)) void multiply_tile(const Tile& tile, const char* const* panels, int64_t num_steps,
                                             const Fetch& fetch, float* sums, int64_t row_stride, int64_t column_stride,
                                             bool is_first) {
  constexpr int64_t kLaneBytes = kLineBytes / kLineSteps<E>;
  constexpr bool kMayFetch = R >= kFewestRowsToFetch || R >= kFewestRowsOfSeveralTiles;
  static_assert(kLineSteps<E> % kStepsAtOnce == 0);
  Vec totals[R][P];
  const char* w[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) w[p] = panels[p];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) totals[r][p] = is_first ? zero() : load(sums + r * row_stride + p * column_stride);
  }
  TileRows<R, !E::kReadsInPlace> x(tile);
  int64_t step = 0, ahead = fetch.distance;
  for (; step + kLineSteps<E> <= num_steps; step += kLineSteps<E>) {
    if (kMayFetch && fetch.rows_distance) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) fetch_line(x.row(r) + fetch.rows_distance);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < kLineSteps<E>; i += kStepsAtOnce) {
      // As many at every turn, which a core learns to expect.
      for (int64_t j = 0; kMayFetch && j < fetch.count; ++j, ahead += kLineBytes) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) fetch_line(w[p] + ahead);
      }
#pragma GCC unroll 8
      for (int64_t j = i; j < i + kStepsAtOnce; ++j) {
        E::template step<R, P>(totals, x, j * kLaneBytes, w, (step + j) * kStepBytes);
      }
    }
    x.next_line();
  }
  for (int64_t i = 0; step < num_steps; ++i, ++step) {
    E::template step<R, P>(totals, x, i * kLaneBytes, w, step * kStepBytes);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) store(sums + r * row_stride + p * column_stride, totals[r][p]);
  }
}

using TileFn = void (*)(const Tile&, const char* const*, int64_t, const Fetch&, float*, int64_t, int64_t, bool);

// Panels that a tile of so many rows takes at once. Where that is one, few rows take two: their sums leave registers
// enough, and the chains of multiply-adds of one panel are too few to keep a core busy.
constexpr int tile_panels(int64_t rows) { return kTilePanels == 1 && 2 * rows <= kTileRows ? 2 : kTilePanels; }
inline constexpr int kMostTilePanels = tile_panels(1);

// Tile kernels by number of rows, for several panels and for a single one.
template <class E>
struct TileKernels {
  TileFn several[kTileRows + 1] = {};
  TileFn single[kTileRows + 1] = {};

  template <int R>
  constexpr void fill() {
    several[R] = multiply_tile<E, R, tile_panels(R)>;
    single[R] = multiply_tile<E, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr TileKernels() { fill<kTileRows>(); }

  static const TileKernels kAll;  // gemm_tiles.h
};

// Rows cut into tiles of nearly equal size.
struct Tiles {
  int64_t count, rows;

  explicit Tiles(int64_t num_rows, int64_t most = kTileRows) : count(divide_up(num_rows, most)), rows(num_rows) {}

  int64_t begin(int64_t tile) const { return rows * tile / count; }
  int64_t size(int64_t tile) const { return begin(tile + 1) - begin(tile); }
};

// As rows are brought into scratch: line by line, those of all rows next to each other.
AETHER_INLINE Tile packed_tile(const char* lines, int64_t num_rows) {
  return {lines, kLineBytes, num_rows * kLineBytes};
}

// `count` activations as lanes of a tile, the rest of the line zero.
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

// Copies columns [k_begin, k_begin + k_count) of the rows `row(0) … row(num_rows - 1)` into one tile.
template <class E, class RowFn>
AETHER_INLINE void pack_tile(RowFn row, int64_t num_rows, int64_t k_begin, int64_t k_count, char* tile) {
  using Lane = typename E::Lane;
  for (int64_t r = 0; r < num_rows; ++r) {
    const auto* x = row(r) + k_begin;
    char* target = tile + r * kLineBytes;
    int64_t k = 0;
    for (; k + kLineK<E> <= k_count; k += kLineK<E>, target += num_rows * kLineBytes) {
      copy_full_line(x + k, reinterpret_cast<Lane*>(target));
    }
    if (k < k_count) copy_line(x + k, k_count - k, reinterpret_cast<Lane*>(target));
  }
}

// The same for any number of rows: into tiles, one after another.
template <class E, class RowFn>
AETHER_INLINE void pack_tiles(RowFn row, int64_t num_rows, int64_t k_begin, int64_t k_count, char* tiles) {
  const int64_t num_lines = divide_up(k_count, kLineK<E>);
  const Tiles cut(num_rows);
  for (int64_t tile = 0; tile < cut.count; ++tile) {
    pack_tile<E>([&](int64_t r) { return row(cut.begin(tile) + r); }, cut.size(tile), k_begin, k_count,
                 tiles + cut.begin(tile) * num_lines * kLineBytes);
  }
}

// Tiles by `num_panels` panels, each starting `offset` bytes into its panel; C has rows of `num_panels * 16` floats.
// `tile_at(i)` is where tile i of Tiles(num_rows) lies. A tile kernel takes its panels from as many equal parts of the
// list, so that each part is one long stream where panels lie one after another in memory. `next` is what will be
// wanted after these. Tiles that `are_far` from this core are fetched ahead of the first panels that meet them.
template <class E, class TileAtFn>
AETHER_INLINE void multiply_each_tile(TileAtFn tile_at, int64_t num_rows, int64_t k_count, const char* const* panels,
                                      int64_t num_panels, int64_t offset, bool is_first, float* c, const char* next,
                                      bool are_far = false) {
  const int64_t num_steps = divide_up(k_count, E::kStepK), num_turns = divide_up(num_steps, kStepsAtOnce);
  const int64_t row_stride = num_panels * kPanelColumns;
  const Tiles cut(num_rows);
  const int64_t together = cut.count == 1 ? tile_panels(num_rows) : kTilePanels;
  const int64_t part = together == 1 ? 0 : num_panels / together;
  const int64_t num_single = num_panels - part * together;
  for (int64_t p = 0; p < part + num_single; ++p) {
    const bool is_single = p >= part;
    const int64_t first = is_single ? part * together + (p - part) : p;
    const char* w[kMostTilePanels];
    for (int64_t i = 0; i < (is_single ? 1 : together); ++i) w[i] = panels[first + i * part] + offset;
    const bool is_last = p + 1 == part + num_single;
    const char* following = is_last ? next : panels[p + 1 == part ? part * together : first + 1] + offset;
    const bool may_fetch = num_rows >= kFewestRowsToFetch && (cut.count == 1 || following);
    const int64_t ahead = fetch_ahead_bytes(num_rows, kFetchAheadBytes);
    const int64_t distance = !may_fetch ? 0 : cut.count == 1 ? ahead : following - w[0];
    for (int64_t tile = 0; tile < cut.count; ++tile) {
      const int64_t begin = cut.begin(tile), size = cut.size(tile);
      const TileFn multiply = is_single ? TileKernels<E>::kAll.single[size] : TileKernels<E>::kAll.several[size];
      const Tile x = tile_at(tile);
      const int64_t rows_distance = are_far && p == 0 && tile + 1 < cut.count ? tile_at(tile + 1).x - x.x : 0;
      Fetch fetch = may_fetch ? share_of_tile(distance, num_steps, num_turns, tile, cut.count) : Fetch();
      fetch.rows_distance = rows_distance;
      multiply(x, w, num_steps, fetch, c + begin * row_stride + first * kPanelColumns, row_stride, part * kPanelColumns,
               is_first);
    }
  }
}

// The same with tiles that lie one after another.
template <class E>
AETHER_INLINE void multiply_tiles(const char* tiles, int64_t num_rows, int64_t k_count, const char* const* panels,
                                  int64_t num_panels, int64_t offset, bool is_first, float* c,
                                  const char* next = nullptr) {
  const int64_t tile_row_bytes = divide_up(k_count, kLineK<E>) * kLineBytes;
  const Tiles cut(num_rows);
  multiply_each_tile<E>(
      [&](int64_t tile) { return packed_tile(tiles + cut.begin(tile) * tile_row_bytes, cut.size(tile)); }, num_rows,
      k_count, panels, num_panels, offset, is_first, c, next);
}

// A single tile by panels that are in this core's caches: to fetch them would only take turns from the loads that
// arithmetic waits for. C is set. `between(n)` is called after every n panels.
template <class E, class BetweenFn>
AETHER_INLINE void multiply_near(const char* tile, int64_t num_rows, int64_t k_count, const char* const* panels,
                                 int64_t num_panels, float* c, BetweenFn between) {
  const int64_t num_steps = divide_up(k_count, E::kStepK), row_stride = num_panels * kPanelColumns;
  const int64_t together = tile_panels(num_rows);
  const Fetch nothing;
  for (int64_t p = 0; p < num_panels;) {
    const bool is_single = p + together > num_panels;
    const TileFn multiply = is_single ? TileKernels<E>::kAll.single[num_rows] : TileKernels<E>::kAll.several[num_rows];
    multiply(packed_tile(tile, num_rows), panels + p, num_steps, nothing, c + p * kPanelColumns, row_stride,
             kPanelColumns, true);
    p += is_single ? 1 : together;
    between(is_single ? 1 : together);
  }
}

}  // namespace aether::cpu::AETHER_ISA
