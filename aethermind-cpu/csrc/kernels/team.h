// Dividing a kernel's work among the workers of a team.
#pragma once

#include <cstdint>

#include "aethermind/kernel_abi.h"

namespace aether::cpu::AETHER_ISA {

AETHER_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
AETHER_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
AETHER_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
AETHER_INLINE int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

struct Range {
  int64_t begin, end;
};

// This worker's even share of `total` items, in multiples of `grain`.
AETHER_INLINE Range share(const am_team* team, int64_t total, int64_t grain = 1) {
  const int64_t grains = divide_up(total, grain);
  const int64_t begin = grains * team->worker / team->num_workers * grain;
  const int64_t end = grains * (team->worker + 1) / team->num_workers * grain;
  return {begin, smaller(end, total)};
}

// Calls `work(unit)` for units 0 … num_units-1, each on whichever worker comes first. At most once in a kernel.
template <class F>
AETHER_INLINE void for_each_claimed(const am_team* team, int64_t num_units, F work) {
  for (int64_t unit = team->claim(team); unit < num_units; unit = team->claim(team)) work(unit);
}

}  // namespace aether::cpu::AETHER_ISA
