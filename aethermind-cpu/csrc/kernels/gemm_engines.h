// How a tile of rows meets a few panels of dense weights (pack.h), one step after another: the registers of a tile
// kernel (gemm.h).
#pragma once

#include "kernels/pack.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kLineBytes = 64;

// A tile: rows `row_stride` bytes apart, of which a line is followed by the next one after `line_stride`.
struct Tile {
  const char* x;
  int64_t row_stride, line_stride;
};

// Where the R rows of a tile are. Of rows that were brought into one the compiler knows the distances.
template <int R, bool AreBrought>
struct TileRows {
  const char* x;

  AETHER_INLINE explicit TileRows(const Tile& tile) : x(tile.x) {}
  AETHER_INLINE const char* row(int r) const { return x + r * kLineBytes; }
  AETHER_INLINE void next_line() { x += R * kLineBytes; }
};
// Others have a pointer of their own for every third, from which its neighbours are an index away: one for each would
// leave a kernel too few registers.
template <int R>
struct TileRows<R, false> {
  const char* thirds[(R + 2) / 3];
  int64_t stride, line_stride;

  AETHER_INLINE explicit TileRows(const Tile& tile) : stride(tile.row_stride), line_stride(tile.line_stride) {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; ++i) thirds[i] = tile.x + 3 * i * stride;
  }
  AETHER_INLINE const char* row(int r) const { return thirds[r / 3] + r % 3 * stride; }
  AETHER_INLINE void next_line() {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; ++i) thirds[i] += line_stride;
  }
};

// Panels of which a step meets R rows at once, and so shares what it reads of these. Where sums leave registers for one
// panel's columns only, it reads rows again for the next.
template <int R, int P>
inline constexpr int kPanelsOfStep = kTilePanels == 1 && 3 * R > kTileRows ? 1 : P;
AETHER_INLINE void read_again() { __asm__ volatile("" ::: "memory"); }

// Adds the products of every row's float at `at` and the columns of panels from `begin` on.
template <int R, int P, int Together, class Rows>
AETHER_INLINE void add_products(Vec (&sums)[R][P], int begin, const Rows& x, int64_t at,
                                const Vec (&columns)[Together]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Vec value = set1(*reinterpret_cast<const float*>(x.row(r) + at));
#pragma GCC unroll 4
    for (int p = 0; p < Together; ++p) sums[r][begin + p] = fma(value, columns[p], sums[r][begin + p]);
  }
}

// How one 64-byte step of a panel meets a row. `Lane` is what the rows are stored as; a step covers kStepK of them.
// Where an engine kReadsInPlace, rows of many that hold lanes need not be brought into tiles.
struct FloatEngine {
  using Lane = float;
  static constexpr int64_t kStepK = 1;
  static constexpr bool kReadsInPlace = kTilePanels > 1;  // a single panel leaves too little to do beside addresses

  template <int R, int P, class Rows>
  AETHER_INLINE static void step(Vec (&sums)[R][P], const Rows& x, int64_t at, const char* const (&w)[P],
                                 int64_t offset) {
    constexpr int kTogether = kPanelsOfStep<R, P>;
#pragma GCC unroll 4
    for (int begin = 0; begin < P; begin += kTogether) {
      if (begin > 0) read_again();
      Vec columns[kTogether];
#pragma GCC unroll 4
      for (int p = 0; p < kTogether; ++p) columns[p] = load(reinterpret_cast<const float*>(w[begin + p] + offset));
      add_products(sums, begin, x, at, columns);
    }
  }
};

// The two elements of K that a step of a packed weight (pack.h) has of each of its sixteen columns.
AETHER_INLINE Vec load_first(const BFloat16* step) { return load_even(step); }
AETHER_INLINE Vec load_first(const Float16* step) { return load(step); }
AETHER_INLINE Vec load_second(const BFloat16* step) { return load_odd(step); }
AETHER_INLINE Vec load_second(const Float16* step) { return load(step + kPanelColumns); }

template <class T>
struct WideningEngine {
  using Lane = float;
  static constexpr int64_t kStepK = 2;
  static constexpr bool kReadsInPlace = false;

  template <int R, int P, class Rows>
  AETHER_INLINE static void step(Vec (&sums)[R][P], const Rows& x, int64_t at, const char* const (&w)[P],
                                 int64_t offset) {
    constexpr int kTogether = kPanelsOfStep<R, P>;
#pragma GCC unroll 4
    for (int begin = 0; begin < P; begin += kTogether) {
      if (begin > 0) read_again();
      // One after the other, so that sixteen registers hold the sums and one half of the columns.
      Vec columns[kTogether];
#pragma GCC unroll 4
      for (int p = 0; p < kTogether; ++p) columns[p] = load_first(reinterpret_cast<const T*>(w[begin + p] + offset));
      add_products(sums, begin, x, at, columns);
#pragma GCC unroll 4
      for (int p = 0; p < kTogether; ++p) columns[p] = load_second(reinterpret_cast<const T*>(w[begin + p] + offset));
      add_products(sums, begin, x, at + static_cast<int64_t>(sizeof(float)), columns);
    }
  }
};

#ifdef AETHER_HAS_PAIR_DOT
struct PairDotEngine {
  using Lane = BFloat16;
  static constexpr int64_t kStepK = 2;
  static constexpr bool kReadsInPlace = true;

  template <int R, int P, class Rows>
  AETHER_INLINE static void step(Vec (&sums)[R][P], const Rows& x, int64_t at, const char* const (&w)[P],
                                 int64_t offset) {
    __m512bh columns[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) columns[p] = load_step(w[p] + offset);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512bh pair = broadcast_pair(x.row(r) + at);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[r][p] = dot_pairs(pair, columns[p], sums[r][p]);
    }
  }
};
using BFloat16Engine = PairDotEngine;
#else
using BFloat16Engine = WideningEngine<BFloat16>;
#endif

template <class T>
struct EngineFor;
template <>
struct EngineFor<float> {
  using Type = FloatEngine;
};
template <>
struct EngineFor<BFloat16> {
  using Type = BFloat16Engine;
};
template <>
struct EngineFor<Float16> {
  using Type = WideningEngine<Float16>;
};
template <class T>
using Engine = typename EngineFor<T>::Type;

template <class E>
inline constexpr int64_t kLineK = kLineBytes / static_cast<int64_t>(sizeof(typename E::Lane));
template <class E>
inline constexpr int64_t kLineSteps = kLineK<E> / E::kStepK;

}  // namespace aether::cpu::AETHER_ISA
