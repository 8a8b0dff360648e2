// Reducing a row: what sum, mean, max, min, argmax, softmax and layer_norm have in common.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Elements that are summed in float before the sum goes on in double.
inline constexpr int64_t kFloatSumSize = 4096;

template <class T>
AETHER_INLINE float element(const T* p) {
  return first_lane(load(p, 1));
}

// The sum of f(i, lanes), which gives the values of elements i … i + lanes - 1 and zeros after them.
template <class F>
AETHER_INLINE double sum_lanes(int64_t size, F f) {
  double total = 0.0;
  for (int64_t block = 0; block < size; block += kFloatSumSize) {
    const int64_t end = smaller(block + kFloatSumSize, size);
    Vec even = zero(), odd = zero();
    int64_t i = block;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      even = even + f(i, kLanes);
      odd = odd + f(i + kLanes, kLanes);
    }
    for (; i < end; i += kLanes) even = even + f(i, smaller(end - i, kLanes));
    total += reduce_add_double(even + odd);
  }
  return total;
}

template <class T>
AETHER_INLINE Vec load_lanes(const T* p, int64_t lanes) {
  return lanes == kLanes ? load(p) : load(p, lanes);
}

template <class T>
AETHER_INLINE double sum_of(const T* row, int64_t size) {
  return sum_lanes(size, [row](int64_t i, int64_t lanes) { return load_lanes(row + i, lanes); });
}

// The greatest f(element), where f maps lanes to lanes; -inf for an empty row.
template <class T, class F>
AETHER_INLINE float greatest_of(const T* row, int64_t size, F f) {
  Vec even = set1(-__builtin_inff()), odd = even;
  if (size < kLanes) {
    for (int64_t i = 0; i < size; ++i) even = max(even, f(set1(element(row + i))));
    return first_lane(even);
  }
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    even = max(even, f(load(row + i)));
    odd = max(odd, f(load(row + i + kLanes)));
  }
  if (i + kLanes <= size) even = max(even, f(load(row + i)));
  odd = max(odd, f(load(row + size - kLanes)));  // the tail, and some elements a second time
  return reduce_max(max(even, odd));
}

template <class T>
AETHER_INLINE float greatest_of(const T* row, int64_t size) {
  return greatest_of(row, size, [](const Vec& x) { return x; });
}

// out[row] = f(row, size) for every row of x.
template <class T, class F>
AETHER_INLINE void reduce_rows(const am_tensor& x, const am_tensor& out, const am_team* team, F f) {
  const int64_t size = last_dim(x);
  const Range rows = share(team, num_rows(x), kLanes);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    store(data<T>(out) + r, set1(f(data<const T>(x) + r * size, size)), 1);
  }
}

}  // namespace aether::cpu::AETHER_ISA
