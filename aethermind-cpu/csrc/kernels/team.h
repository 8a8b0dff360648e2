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

// Calls `work(begin, end)` for ranges that make up 0 … total-1, from multiples of `grain` on. At most once in a kernel.
//
// For what memory is read for front to back: a stream that goes on is faster than one that starts elsewhere. Three
// quarters of each worker's share are one range and its own; whoever is done first goes on with the rest of all shares,
// in ranges of at least `least`, beginning at its own as a rule.
template <class F>
AETHER_INLINE void for_each_stretch(const am_team* team, int64_t total, int64_t grain, int64_t least, F work) {
  const int64_t grains = divide_up(total, grain), num_workers = team->num_workers;
  const int64_t kept = grains / num_workers * 3 / 4;
  const int64_t rest = divide_up(grains, num_workers) - kept;  // of the largest share
  const int64_t piece = larger(divide_up(least, grain), divide_up(rest, 8));
  const auto work_on = [&](int64_t worker, int64_t begin, int64_t end) {
    const int64_t first = grains * worker / num_workers, last = grains * (worker + 1) / num_workers;
    begin = (first + begin) * grain;
    end = smaller(smaller(first + end, last) * grain, total);
    if (begin < end) work(begin, end);
  };
  work_on(team->worker, 0, kept);
  for_each_claimed(team, divide_up(rest, piece) * num_workers, [&](int64_t unit) {
    const int64_t begin = kept + unit / num_workers * piece;
    work_on(unit % num_workers, begin, begin + piece);
  });
}

}  // namespace aether::cpu::AETHER_ISA
