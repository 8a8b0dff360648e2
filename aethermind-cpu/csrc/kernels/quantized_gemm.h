// The matrix product over quantised weights (quantized_layout.h): C = X · Wᵀ in float32. The rows are brought into
// scratch first, in tiles of a few (quantized_engines.h).
//
// Every element of C is one chain of multiply-adds over ascending K, whatever the blocking: a row's result depends
// neither on the other rows of the batch nor on the number of workers.
#pragma once

#include "kernels/gemm.h"
#include "kernels/quantized_engines.h"
#include "kernels/quantized_levels.h"

namespace aether::cpu::AETHER_ISA {

// One tile by P panels. The sums of row r and panel p are written to sums[r * row_stride + p * 16 …].
template <QuantizedFormat kFormat, int R, int P>
__attribute__((noinline)) void multiply_quantized(const RowTile& tile, const char* const* panels,
                                                  const PanelShape& shape, const Fetch& fetch, float* sums,
                                                  int64_t row_stride) {
  using E = QuantizedEngine<kFormat>;
  const char* codes[P];
  Vec scales[P] = {};
  typename E::Zero zeros[P] = {};
  [[maybe_unused]] LevelLines<kFormat.has_levels> lines[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) codes[p] = panels[p];
  int64_t ahead = fetch.distance;
  const auto fetch_ahead = [&]() __attribute__((always_inline)) {
    if constexpr (R == 1) {  // a tile that shares the fetching with no other: what it now reads, but further on
#pragma GCC unroll 8
      for (int64_t step = 0; step < kFormat.bits; ++step) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) fetch_line(codes[p] + fetch.distance + step * kStepBytes);
      }
    } else {
      for (int64_t i = 0; i < fetch.count; ++i, ahead += kLineBytes) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) fetch_line(panels[p] + ahead);
      }
    }
  };
  Vec totals[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) totals[r][p] = zero();
  }
  const char* x = tile.units;
  for (int64_t unit = 0, block_end = 0; unit < shape.num_units; ++unit, x += R * E::kRowBytes) {
    if (unit == block_end) {
      block_end = smaller(unit + shape.units_per_block, shape.num_units);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        if constexpr (kFormat.has_levels) {
          codes[p] = lines[p].unpack(codes[p]);
          continue;
        }
        scales[p] = load(reinterpret_cast<const Float16*>(codes[p]));
        codes[p] += kScaleBytes;
        if constexpr (kFormat.has_zero_point) {
          zeros[p] = E::zero_points(reinterpret_cast<const uint8_t*>(codes[p]));
          codes[p] += kZeroBytes;
        } else if constexpr (kFormat.has_offset) {
          zeros[p] = load(reinterpret_cast<const Float16*>(codes[p]));
          codes[p] += kOffsetBytes;
        } else {
          zeros[p] = E::no_zero_points();
        }
      }
    }
    if constexpr (kFormat.has_levels) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        scales[p] = lines[p].scales[unit % kSuperUnits];
        zeros[p] = lines[p].offsets[unit % kSuperUnits];
      }
    }
    fetch_ahead();
    const char* residual = nullptr;
    if constexpr (E::kHasResiduals) {
      if (tile.slots[unit] != kNoSlot) residual = tile.residuals + tile.slots[unit] * R * E::kRowBytes;
    }
    for (const char* part = x; part != nullptr; part = part == x ? residual : nullptr) {
      E::add_unit(totals, part, codes, scales, zeros);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) codes[p] += kFormat.bits * kStepBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      store(sums + r * row_stride + p * kPanelColumns, E::kScalesAtEnd ? totals[r][p] * scales[p] : totals[r][p]);
    }
  }
}

using QuantizedTileFn = void (*)(const RowTile&, const char* const*, const PanelShape&, const Fetch&, float*, int64_t);
template <class T>
using BringFn = void (*)(const T*, int64_t, int64_t, const RowTile&);

using AnyQuantizedEngine = QuantizedEngine<QuantizedFormat{.bits = 8}>;  // all cut rows alike

inline constexpr int kQuantizedRows = AnyQuantizedEngine::kRows;
inline constexpr int64_t kUnitRowBytes = AnyQuantizedEngine::kRowBytes;  // of a tile
inline constexpr bool kHasResiduals = AnyQuantizedEngine::kHasResiduals;

constexpr int quantized_panels_at_once(int64_t rows) {
  return AnyQuantizedEngine::panels_at_once(static_cast<int>(rows));
}

// The most rows of a tile where there are `rows`. A few tall tiles read each panel's codes fewer times; where there are
// more, low ones take two panels at once, if the engine can.
constexpr int64_t quantized_tile_rows(int64_t rows) {
  constexpr int64_t half = (kQuantizedRows + 1) / 2;
  return rows > 4 * kQuantizedRows && quantized_panels_at_once(half) > 1 ? half : kQuantizedRows;
}

// The tile kernels of a format by number of rows, for as many panels as they take at once and for a single one.
struct QuantizedTiles {
  QuantizedTileFn several[kQuantizedRows + 1] = {};
  QuantizedTileFn single[kQuantizedRows + 1] = {};
};

template <QuantizedFormat kFormat>
struct QuantizedTilesOf : QuantizedTiles {
  template <int R>
  constexpr void fill() {
    several[R] = multiply_quantized<kFormat, R, quantized_panels_at_once(R)>;
    single[R] = multiply_quantized<kFormat, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr QuantizedTilesOf() { fill<kQuantizedRows>(); }
};
template <QuantizedFormat kFormat>
inline constexpr QuantizedTilesOf<kFormat> kQuantizedTiles;

// Calls f with the format of a layout as a constant.
template <class F>
AETHER_INLINE auto with_format(const QuantizedLayout& layout, F f) {
  if (layout.has_levels)
    return f.template operator()<QuantizedFormat{.bits = 4, .has_offset = true, .has_levels = true}>();
  if (layout.has_offset) {
    if (layout.bits == 4) return f.template operator()<QuantizedFormat{.bits = 4, .has_offset = true}>();
    return f.template operator()<QuantizedFormat{.bits = 8, .has_offset = true}>();
  }
  if (layout.has_zero_point) {
    if (layout.bits == 2) return f.template operator()<QuantizedFormat{.bits = 2, .has_zero_point = true}>();
    if (layout.bits == 4) return f.template operator()<QuantizedFormat{.bits = 4, .has_zero_point = true}>();
    return f.template operator()<QuantizedFormat{.bits = 8, .has_zero_point = true}>();
  }
  if (layout.bits == 1) return f.template operator()<QuantizedFormat{.bits = 1}>();
  if (layout.bits == 4) return f.template operator()<QuantizedFormat{.bits = 4}>();
  if (layout.block == 0) return f.template operator()<QuantizedFormat{.bits = 8, .has_row_scale = true}>();
  return f.template operator()<QuantizedFormat{.bits = 8}>();
}

}  // namespace aether::cpu::AETHER_ISA
