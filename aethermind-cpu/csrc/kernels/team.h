// Division of a kernel's work among the workers of a team.
#pragma once

#include <cstdint>

#include "aethermind/kernel_abi.h"

namespace aether::cpu::AETHER_ISA {

AETHER_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
AETHER_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
AETHER_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
AETHER_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Range {
  int64_t begin, end;
};

// This worker's even share of `total` items, in multiples of `grain`.
AETHER_INLINE Range share(const am_team* team, int64_t total, int64_t grain = 1) {
  const int64_t grains = ceil_div(total, grain);
  const int64_t begin = grains * team->worker / team->num_workers * grain;
  const int64_t end = grains * (team->worker + 1) / team->num_workers * grain;
  return {begin, smaller(end, total)};
}

// Dynamic schedule: calls `work(item)` for items 0 … num_items-1, each on the first worker that claims it. At most once
// in a kernel.
template <class F>
AETHER_INLINE void for_each_claimed(const am_team* team, int64_t num_items, F work) {
  for (int64_t item = team->claim(team); item < num_items; item = team->claim(team)) work(item);
}

// Calls `work(begin, end)` for ranges that make up 0 … total-1, from multiples of `grain` on. At most once in a kernel.
//
// For streams of memory, which are fastest when they are long: static and dynamic schedule combined. The first three
// quarters of each worker's share are one range and its own; the rest of all shares is claimed dynamically in chunks of
// at least `min_chunk`, usually with a worker's own share first.
template <class F>
AETHER_INLINE void for_each_chunk(const am_team* team, int64_t total, int64_t grain, int64_t min_chunk, F work) {
  const int64_t grains = ceil_div(total, grain), num_workers = team->num_workers;
  const int64_t owned = grains / num_workers * 3 / 4;
  const int64_t shared = ceil_div(grains, num_workers) - owned;  // of the largest share
  const int64_t chunk = larger(ceil_div(min_chunk, grain), ceil_div(shared, 8));
  const auto run = [&](int64_t worker, int64_t begin, int64_t end) {
    const int64_t first = grains * worker / num_workers, last = grains * (worker + 1) / num_workers;
    begin = (first + begin) * grain;
    end = smaller(smaller(first + end, last) * grain, total);
    if (begin < end) work(begin, end);
  };
  run(team->worker, 0, owned);
  for_each_claimed(team, ceil_div(shared, chunk) * num_workers, [&](int64_t item) {
    const int64_t begin = owned + item / num_workers * chunk;
    run(item % num_workers, begin, begin + chunk);
  });
}

}  // namespace aether::cpu::AETHER_ISA
