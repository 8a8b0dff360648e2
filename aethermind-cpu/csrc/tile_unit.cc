#include "tile_unit.h"

#include "built_levels.h"
#include "cpu_features.h"

namespace aether::cpu {

const TileUnit* hardware_tile_unit() noexcept {
#if AETHER_BUILT_AMX
  if (tile_support() == TileSupport::kPresent) return &kHardwareTileUnit;
#endif
  return nullptr;
}

const TileUnit& tile_unit() noexcept {
  const TileUnit* hardware = is_tile_unit_modelled() ? nullptr : hardware_tile_unit();
  return hardware ? *hardware : kTileModel;
}

}  // namespace aether::cpu
