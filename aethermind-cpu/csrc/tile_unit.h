// Products on a CPU's tile unit (Intel AMX): the seam between the matrix kernels, which divide a product into products
// of tiles, and the hardware or its model in software, which run the same sequence of tile instructions
// (kernels/tile_product.h).
#ifndef AETHER_CPU_TILE_UNIT_H
#define AETHER_CPU_TILE_UNIT_H

#include <cstdint>

namespace aether::cpu {

inline constexpr int kMaxTileRows = 16;
inline constexpr int kMaxProductPanels = 4;  // of one product: as many accumulators
inline constexpr int kTileSteps = 16;        // steps (kernels/pack.h) of a panel that one tile holds

// c [num_rows][num_panels][16] = x · panelsᵀ (added to c unless `is_first`).
//
// A row of x and each of a panel's sixteen columns are sequences of 32-bit words, two bfloat16 each. A panel is a
// sequence of steps of 64 bytes: one word of each column. `num_steps` is a multiple of kTileSteps; `tail_steps`, up to
// kTileSteps, follow, for which the rows have an address of their own.
//
// Every element of c is a sum over ascending steps, sixteen at a time; within sixteen steps the order is the tile
// unit's. It depends neither on the other rows and panels nor on how the steps are split into products, as long as only
// the last one has a tail.
struct TileProduct {
  const char* x;
  int64_t x_stride;  // bytes between rows
  const char* x_tail;
  int64_t x_tail_stride;
  const char* const* panels;
  int num_rows, num_panels;
  int64_t num_steps, tail_steps;
  float* c;
  int64_t c_stride, c_panel_stride;  // bytes
  bool is_first;
  int64_t prefetch_bytes;  // how far ahead in each panel lines are prefetched; 0: none
};

// Tile registers belong to a thread. Between `configure` and `release` it holds 8 KiB of state, which a thread switch
// saves, and other code of the thread must not use tiles.
struct TileUnit {
  // For products of `num_rows` rows, with a tail of `tail_steps` or without. May be called again.
  void (*configure)(int num_rows, int tail_steps);
  void (*multiply_bfloat16)(const TileProduct& product);
  void (*release)();
};

extern const TileUnit kTileModel;         // tile_model.cc
extern const TileUnit kHardwareTileUnit;  // kernels/tile_unit_amx.cc

// The tile unit of this CPU; null where it has none, where this process may not use it, or where the build lacks it.
const TileUnit* hardware_tile_unit() noexcept;

// What the kernels of level `amx` use: the model where is_tile_unit_modelled() (cpu_features.h), else the hardware.
const TileUnit& tile_unit() noexcept;

}  // namespace aether::cpu

#endif  // AETHER_CPU_TILE_UNIT_H
