// Microkernels of dense weights: how a register tile of rows is multiplied by one 64-byte step of a few panels
// (pack.h). The loop over steps is the tile kernel's (gemm.h).
#pragma once

#include "kernels/pack.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kLineBytes = 64;

// A tile of rows: rows are `row_stride` bytes apart, the lines of one row `line_stride` bytes.
struct Tile {
  const char* x;
  int64_t row_stride, line_stride;
};

// Addresses of the R rows of a tile. In a packed tile all distances are constants.
template <int R, bool IsPacked>
struct TileRows {
  const char* x;

  AETHER_INLINE explicit TileRows(const Tile& tile) : x(tile.x) {}
  AETHER_INLINE const char* row(int r) const { return x + r * kLineBytes; }
  AETHER_INLINE void next_line() { x += R * kLineBytes; }
};
// Rows in place: one pointer for every three rows, which the other two address with an index; a pointer for each row
// would take too many registers.
template <int R>
struct TileRows<R, false> {
  const char* row_pointers[(R + 2) / 3];
  int64_t stride, line_stride;

  AETHER_INLINE explicit TileRows(const Tile& tile) : stride(tile.row_stride), line_stride(tile.line_stride) {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; ++i) row_pointers[i] = tile.x + 3 * i * stride;
  }
  AETHER_INLINE const char* row(int r) const { return row_pointers[r / 3] + r % 3 * stride; }
  AETHER_INLINE void next_line() {
#pragma GCC unroll 4
    for (int i = 0; i < (R + 2) / 3; ++i) row_pointers[i] += line_stride;
  }
};

// Panels whose columns a step holds in registers at once, to load each activation only once for all of them. Where the
// accumulators leave registers for one panel's columns only, the step makes one pass over the rows for each panel.
template <int R, int P>
inline constexpr int kPanelsPerPass = kTilePanels == 1 && 3 * R > kTileRows ? 1 : P;
AETHER_INLINE void reload_barrier() { __asm__ volatile("" ::: "memory"); }

// Adds the product of every row's float at `at` by the columns of the panels from `begin` on.
template <int R, int P, int N, class Rows>
AETHER_INLINE void add_products(Vec (&sums)[R][P], int begin, const Rows& x, int64_t at, const Vec (&columns)[N]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const Vec value = set1(*reinterpret_cast<const float*>(x.row(r) + at));
#pragma GCC unroll 4
    for (int p = 0; p < N; ++p) sums[r][begin + p] = fma(value, columns[p], sums[r][begin + p]);
  }
}

// Float32: one FMA for every row and panel. A microkernel has
//
//   Activation          the type of a packed row's elements
//   kStepK              elements of K in one step
//   kReadsRowsInPlace   whether gemm_large.h may pass rows of activations without packing them
//   step                multiplies one step: activations at offset `at` of every row, weights at `offset` of every
//   panel
struct FmaMicrokernel {
  using Activation = float;
  static constexpr int64_t kStepK = 1;
  static constexpr bool kReadsRowsInPlace =
      kTilePanels > 1;  // one panel has too little arithmetic for the address computation

  template <int R, int P, class Rows>
  AETHER_INLINE static void step(Vec (&sums)[R][P], const Rows& x, int64_t at, const char* const (&w)[P],
                                 int64_t offset) {
    constexpr int kPassPanels = kPanelsPerPass<R, P>;
#pragma GCC unroll 4
    for (int begin = 0; begin < P; begin += kPassPanels) {
      if (begin > 0) reload_barrier();
      Vec columns[kPassPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPassPanels; ++p) columns[p] = load(reinterpret_cast<const float*>(w[begin + p] + offset));
      add_products(sums, begin, x, at, columns);
    }
  }
};

// The first and the second element of K in a step of a 16-bit weight (pack.h), for its sixteen columns.
AETHER_INLINE Vec load_first(const BFloat16* step) { return load_even(step); }
AETHER_INLINE Vec load_first(const Float16* step) { return load(step); }
AETHER_INLINE Vec load_second(const BFloat16* step) { return load_odd(step); }
AETHER_INLINE Vec load_second(const Float16* step) { return load(step + kPanelColumns); }

// 16-bit weights: widened to float32 in registers, with float32 activations.
template <class T>
struct WideningMicrokernel {
  using Activation = float;
  static constexpr int64_t kStepK = 2;
  static constexpr bool kReadsRowsInPlace = false;

  template <int R, int P, class Rows>
  AETHER_INLINE static void step(Vec (&sums)[R][P], const Rows& x, int64_t at, const char* const (&w)[P],
                                 int64_t offset) {
    constexpr int kPassPanels = kPanelsPerPass<R, P>;
#pragma GCC unroll 4
    for (int begin = 0; begin < P; begin += kPassPanels) {
      if (begin > 0) reload_barrier();
      // One half after the other: sixteen registers hold the accumulators and one half of the columns.
      Vec columns[kPassPanels];
#pragma GCC unroll 4
      for (int p = 0; p < kPassPanels; ++p) columns[p] = load_first(reinterpret_cast<const T*>(w[begin + p] + offset));
      add_products(sums, begin, x, at, columns);
#pragma GCC unroll 4
      for (int p = 0; p < kPassPanels; ++p) columns[p] = load_second(reinterpret_cast<const T*>(w[begin + p] + offset));
      add_products(sums, begin, x, at + static_cast<int64_t>(sizeof(float)), columns);
    }
  }
};

#ifdef AETHER_HAS_PAIR_DOT
// bfloat16 weights and activations: a dot product of pairs (VDPBF16PS).
struct Bf16DotMicrokernel {
  using Activation = BFloat16;
  static constexpr int64_t kStepK = 2;
  static constexpr bool kReadsRowsInPlace = true;

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
using BFloat16Microkernel = Bf16DotMicrokernel;
#else
using BFloat16Microkernel = WideningMicrokernel<BFloat16>;
#endif

template <class T>
struct MicrokernelFor;
template <>
struct MicrokernelFor<float> {
  using Type = FmaMicrokernel;
};
template <>
struct MicrokernelFor<BFloat16> {
  using Type = BFloat16Microkernel;
};
template <>
struct MicrokernelFor<Float16> {
  using Type = WideningMicrokernel<Float16>;
};
template <class T>
using Microkernel = typename MicrokernelFor<T>::Type;

template <class Micro>
inline constexpr int64_t kLineK = kLineBytes / static_cast<int64_t>(sizeof(typename Micro::Activation));
template <class Micro>
inline constexpr int64_t kLineSteps = kLineK<Micro> / Micro::kStepK;

}  // namespace aether::cpu::AETHER_ISA
