#include "isa/amx.h"

namespace aether::cpu {

constinit const TileUnit kHardwareTileUnit = kTileUnitOf<AETHER_ISA::HardwareTiles>;

}  // namespace aether::cpu
