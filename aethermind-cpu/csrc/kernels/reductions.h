// Reductions of a row: its sum and its largest element.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Number of elements in a block. A block is summed in float32; the block sums are added in float64.
inline constexpr int64_t kFloat32BlockSize = 4096;

template <class T>
AETHER_INLINE float element(const T* p) {
  return first_lane(load(p, 1));
}

// Σ f(i, lanes), where f returns the values of elements i … i + lanes - 1, zero-padded.
template <class F>
AETHER_INLINE double sum_lanes(int64_t size, F f) {
  double total = 0.0;
  for (int64_t block = 0; block < size; block += kFloat32BlockSize) {
    const int64_t end = smaller(block + kFloat32BlockSize, size);
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

// The maximum of f(x) over the elements x of a row; f works on a vector. -inf for an empty row.
template <class T, class F>
AETHER_INLINE float max_of_row(const T* row, int64_t size, F f) {
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
  odd = max(odd, f(load(row + size - kLanes)));  // the tail, which overlaps elements already seen
  return reduce_max(max(even, odd));
}

template <class T>
AETHER_INLINE float max_of_row(const T* row, int64_t size) {
  return max_of_row(row, size, [](const Vec& x) { return x; });
}

// Index of the first element >= `value`; 0 if there is none, as in a row of NaN.
template <class T>
AETHER_INLINE int64_t first_not_less(const T* row, int64_t size, float value) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const uint32_t found = greater_equal_mask(load(row + i), set1(value));
    if (found) return i + __builtin_ctz(found);
  }
  for (; i < size; ++i) {
    if (element(row + i) >= value) return i;
  }
  return 0;
}

}  // namespace aether::cpu::AETHER_ISA
