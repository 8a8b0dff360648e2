// The sequence of tile instructions of one product (tile_unit.h), for any implementation of the instructions.
//
// `Tiles` has static functions, with tile registers as template arguments:
//
//   configure(config)            LDTILECFG
//   load<T>(address, stride)     TILELOADD
//   store<T>(address, stride)    TILESTORED
//   zero<T>()                    TILEZERO
//   dot_bfloat16<C, A, B>()      TDPBF16PS
//   dot_int8<C, A, B>()          TDPBSSD
//   release()                    TILERELEASE
#pragma once

#include <cstdint>
#include <utility>

#include "tile_unit.h"

namespace aether::cpu {

inline constexpr int kTileRowBytes = 64;

// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Registers: accumulators 0 … 3, then the operands. The tail of a product has registers of its own shape. Registers
// that hold nothing are zeroed, which frees them: the fewer are in use, the more products can be in flight where
// another hardware thread shares the tile unit.
enum TileRegister { kAccumulator = 0, kRows = 4, kColumns = 5, kTailRows = 6, kTailColumns = 7 };

// Inlined everywhere: units of several instruction sets include this.
__attribute__((always_inline)) inline TileConfig tile_config(int num_rows, int tail_steps) {
  TileConfig config;
  const auto set = [&](int tile, int rows, int row_bytes) {
    config.rows[tile] = static_cast<uint8_t>(row_bytes ? rows : 0);
    config.row_bytes[tile] = static_cast<uint16_t>(rows ? row_bytes : 0);
  };
  for (int i = 0; i < kMaxProductPanels; ++i) set(kAccumulator + i, num_rows, kTileRowBytes);
  set(kRows, num_rows, kTileRowBytes);
  set(kColumns, kTileSteps, kTileRowBytes);
  set(kTailRows, num_rows, tail_steps * 4);
  set(kTailColumns, tail_steps, kTileRowBytes);
  return config;
}

template <class Tiles>
void configure_tiles(int num_rows, int tail_steps) {
  const TileConfig config = tile_config(num_rows, tail_steps);
  Tiles::configure(config);
}

template <class Tiles, int... P>
void multiply_panels(const TileProduct& product, std::integer_sequence<int, P...>) {
  char* c = reinterpret_cast<char*>(product.c);
  const char* panels[] = {product.panels[P]...};
  const auto start = [&]<int Panel>() {
    if (product.is_first) {
      Tiles::template zero<kAccumulator + Panel>();
    } else {
      Tiles::template load<kAccumulator + Panel>(c + Panel * product.c_panel_stride, product.c_stride);
    }
  };
  (start.template operator()<P>(), ...);

  const auto multiply = [&]<int Rows, int Columns, int Panel>(int64_t step) {
    Tiles::template load<Columns>(panels[Panel] + step * kTileRowBytes, kTileRowBytes);
    Tiles::template dot_bfloat16<kAccumulator + Panel, Rows, Columns>();
  };
  for (int64_t step = 0; step < product.num_steps; step += kTileSteps) {
    if (product.prefetch_bytes) {
      const int64_t ahead = step * kTileRowBytes + product.prefetch_bytes;
      for (const char* panel : panels) {
        for (int64_t line = 0; line < kTileSteps; ++line) __builtin_prefetch(panel + ahead + line * kTileRowBytes);
      }
    }
    Tiles::template load<kRows>(product.x + step * 4, product.x_stride);
    (multiply.template operator()<kRows, kColumns, P>(step), ...);
  }
  if (product.tail_steps > 0) {
    Tiles::template load<kTailRows>(product.x_tail, product.x_tail_stride);
    (multiply.template operator()<kTailRows, kTailColumns, P>(product.num_steps), ...);
    Tiles::template zero<kTailRows>();
    Tiles::template zero<kTailColumns>();
  }
  (Tiles::template store<kAccumulator + P>(c + P * product.c_panel_stride, product.c_stride), ...);
}

template <class Tiles>
void multiply_bfloat16_tiles(const TileProduct& product) {
  switch (product.num_panels) {
    case 1:
      return multiply_panels<Tiles>(product, std::make_integer_sequence<int, 1>());
    case 2:
      return multiply_panels<Tiles>(product, std::make_integer_sequence<int, 2>());
    case 3:
      return multiply_panels<Tiles>(product, std::make_integer_sequence<int, 3>());
    default:
      return multiply_panels<Tiles>(product, std::make_integer_sequence<int, 4>());
  }
}

template <class Tiles>
inline constexpr TileUnit kTileUnitOf = {configure_tiles<Tiles>, multiply_bfloat16_tiles<Tiles>, Tiles::release};

}  // namespace aether::cpu
