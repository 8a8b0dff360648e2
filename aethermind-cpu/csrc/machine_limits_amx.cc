#if defined(__x86_64__)
#define AETHER_ISA amx
#include "machine_limits_probes.h"
#include "simd/amx.h"

namespace aether::cpu {
namespace AETHER_ISA {

// Two accumulators and two operands: with more registers in use, a tile unit that two hardware threads share is slower.
template <class StepFn>
inline float tile_rate(int64_t num_rounds, double operations_per_tile, double* num_operations, StepFn step) {
  using Tiles = HardwareTiles;
  alignas(kTileRowBytes) static const char zeros[kMaxTileRows * kTileRowBytes] = {};
  configure_tiles<Tiles>(kMaxTileRows, 0);
  Tiles::load<kRows>(zeros, kTileRowBytes);
  Tiles::load<kColumns>(zeros, kTileRowBytes);
  for (int64_t round = 0; round < num_rounds; round += 2) step();
  Tiles::release();
  *num_operations = operations_per_tile * static_cast<double>(num_rounds);
  return 0.0f;
}

inline float bfloat16_rate(int64_t num_rounds, double* num_operations) {
  return tile_rate(num_rounds, 2.0 * 16 * 16 * 32, num_operations, [] {
    HardwareTiles::dot_bfloat16<kAccumulator, kRows, kColumns>();
    HardwareTiles::dot_bfloat16<kAccumulator + 1, kRows, kColumns>();
  });
}

inline float int8_rate(int64_t num_rounds, double* num_operations) {
  return tile_rate(num_rounds, 2.0 * 16 * 16 * 64, num_operations, [] {
    HardwareTiles::dot_int8<kAccumulator, kRows, kColumns>();
    HardwareTiles::dot_int8<kAccumulator + 1, kRows, kColumns>();
  });
}

}  // namespace AETHER_ISA

const Probes kAmxProbes = {.bfloat16 = AETHER_ISA::bfloat16_rate, .int8 = AETHER_ISA::int8_rate};

}  // namespace aether::cpu

#endif
