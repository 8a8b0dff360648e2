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

// Reads the scales and zero points, or offsets, of the block at `codes`, and moves on to its codes.
template <QuantizedFormat kFormat, class Zero>
AETHER_INLINE void read_sides(const char*& codes, Vec& scale, Zero& zero) {
  using E = QuantizedEngine<kFormat>;
  scale = load(reinterpret_cast<const Float16*>(codes));
  codes += kScaleBytes;
  if constexpr (kFormat.has_zero_point) {
    zero = E::zero_points(reinterpret_cast<const uint8_t*>(codes));
    codes += kZeroBytes;
  } else if constexpr (kFormat.has_offset) {
    zero = load(reinterpret_cast<const Float16*>(codes));
    codes += kOffsetBytes;
  } else {
    zero = E::no_zero_points();
  }
}

// One tile by P panels. The sums of row r and panel p are written to sums[r * row_stride + p * 16 …].
template <QuantizedFormat kFormat, int R, int P>
__attribute__((noinline)) void multiply_quantized(const char* x, const char* const* panels, const PanelShape& shape,
                                                  const Fetch& fetch, float* sums, int64_t row_stride) {
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
  for (int64_t unit = 0, block_end = 0; unit < shape.num_units; ++unit, x += R * E::kRowBytes) {
    if (unit == block_end) {
      block_end = smaller(unit + shape.units_per_block, shape.num_units);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        if constexpr (kFormat.has_levels) {
          codes[p] = lines[p].unpack(codes[p]);
        } else {
          read_sides<kFormat>(codes[p], scales[p], zeros[p]);
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
    E::add_unit(totals, x, codes, scales, zeros);
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

// Adds what rounding left of units with outliers (quantized_engines.h), row by row, to the sums of `num_panels` panels.
template <QuantizedFormat kFormat>
__attribute__((noinline)) void add_residuals(const RowTile& tile, int64_t num_rows, const char* const* panels,
                                             int64_t num_panels, const PanelShape& shape, float* sums,
                                             int64_t row_stride) {
  using E = QuantizedEngine<kFormat>;
  for (int64_t r = 0; r < num_rows; ++r, sums += row_stride) {
    const int32_t* outliers = tile.outliers_of(r, shape.num_units);
    const int32_t count = *outliers++;
    if (count == 0) continue;
    for (int64_t p = 0; p < num_panels; ++p) {
      float* to = sums + p * kPanelColumns;
      const char* x = tile.residuals_of(r, shape.num_units, E::kRowBytes);
      Vec totals[1][1] = {{E::kScalesAtEnd ? zero() : load(to)}}, scales[1] = {};
      typename E::Zero zeros[1] = {};
      [[maybe_unused]] LevelLines<kFormat.has_levels> lines;
      for (int32_t i = 0; i < count; ++i, x += E::kRowBytes) {
        const int64_t unit = outliers[i], block = unit / shape.units_per_block;
        const char* codes[1] = {panels[p] + block * shape.block_bytes};
        if constexpr (kFormat.has_levels) {
          codes[0] = lines.unpack(codes[0]);
          scales[0] = lines.scales[unit % kSuperUnits];
          zeros[0] = lines.offsets[unit % kSuperUnits];
        } else {
          read_sides<kFormat>(codes[0], scales[0], zeros[0]);
        }
        codes[0] += (unit - block * shape.units_per_block) * kFormat.bits * kStepBytes;
        E::add_unit(totals, x, codes, scales, zeros);
      }
      store(to, E::kScalesAtEnd ? fma(totals[0][0], scales[0], load(to)) : totals[0][0]);
    }
  }
}

using QuantizedTileFn = void (*)(const char*, const char* const*, const PanelShape&, const Fetch&, float*, int64_t);
using ResidualsFn = void (*)(const RowTile&, int64_t, const char* const*, int64_t, const PanelShape&, float*, int64_t);
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

// The tile kernels of a format by number of rows, for as many panels as they take at once and for a single one; and
// what adds the residuals of a tile, if there are any.
struct QuantizedTiles {
  QuantizedTileFn several[kQuantizedRows + 1] = {};
  QuantizedTileFn single[kQuantizedRows + 1] = {};
  ResidualsFn residuals = nullptr;
};

template <QuantizedFormat kFormat>
struct QuantizedTilesOf : QuantizedTiles {
  template <int R>
  constexpr void fill() {
    several[R] = multiply_quantized<kFormat, R, quantized_panels_at_once(R)>;
    single[R] = multiply_quantized<kFormat, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr QuantizedTilesOf() {
    fill<kQuantizedRows>();
    if constexpr (kHasResiduals) residuals = add_residuals<kFormat>;
  }
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
