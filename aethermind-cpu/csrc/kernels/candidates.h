// Tokens that a sampler still considers, and cutting them to the front of their descending order without sorting.
#pragma once

#include "kernels/team.h"

namespace aether::cpu::AETHER_ISA {

struct Candidate {
  float weight;  // probability, up to a factor
  int32_t token;
};

// Descending probability, lower token first on ties: a total order.
AETHER_INLINE bool comes_before(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
}

AETHER_INLINE void exchange(Candidate& a, Candidate& b) {
  const Candidate kept = a;
  a = b;
  b = kept;
}

// Puts items[begin, end) in two parts around the median of three of them, and returns where that one stands.
inline int64_t partition(Candidate* items, int64_t begin, int64_t end) {
  const int64_t last = end - 1, middle = begin + (end - begin) / 2;
  if (comes_before(items[middle], items[begin])) exchange(items[middle], items[begin]);
  if (comes_before(items[last], items[begin])) exchange(items[last], items[begin]);
  if (comes_before(items[last], items[middle])) exchange(items[last], items[middle]);
  exchange(items[middle], items[last]);
  const Candidate pivot = items[last];
  int64_t place = begin;
  for (int64_t i = begin; i < last; ++i) {
    if (comes_before(items[i], pivot)) exchange(items[i], items[place++]);
  }
  exchange(items[place], items[last]);
  return place;
}

// Reorders the items so that a front of their descending order comes first, and returns its length: the shortest one
// whose measures satisfy `is_enough(sum)`, or all. The last item of the front is the one that made it enough.
// Quickselect: linear on average.
template <class Measure, class Enough>
AETHER_INLINE int64_t select_front(Candidate* items, int64_t count, Measure measure, Enough is_enough) {
  int64_t begin = 0, end = count;
  double sum = 0.0;
  while (begin < end) {
    const int64_t place = partition(items, begin, end);
    double before = sum;
    for (int64_t i = begin; i < place; ++i) before += measure(items[i]);
    if (place > begin && is_enough(before)) {
      end = place;
      continue;
    }
    sum = before + measure(items[place]);
    begin = place + 1;
    if (is_enough(sum)) break;
  }
  return begin;
}

AETHER_INLINE double total_weight(const Candidate* items, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += items[i].weight;
  return sum;
}

}  // namespace aether::cpu::AETHER_ISA
