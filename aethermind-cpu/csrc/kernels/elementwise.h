// Walking contiguous tensors sixteen lanes at a time: what add, mul, silu and silu_mul have in common.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// A multiple of the lanes and of a cache line, so that no two workers write one line.
inline constexpr int64_t kElementwiseGrain = 256;

template <class T, class F>
void map_elements(const am_tensor& x, const am_tensor& out, const am_team* team, F f) {
  const T* source = data<const T>(x);
  T* target = data<T>(out);
  const Range range = share(team, num_elements(out), kElementwiseGrain);
  int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(target + i, f(load(source + i)));
  if (i < range.end) store(target + i, f(load(source + i, range.end - i)), range.end - i);
}

template <class T, class F>
void map_elements(const am_tensor& x, const am_tensor& y, const am_tensor& out, const am_team* team, F f) {
  const T* first = data<const T>(x);
  const T* second = data<const T>(y);
  T* target = data<T>(out);
  const Range range = share(team, num_elements(out), kElementwiseGrain);
  int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(target + i, f(load(first + i), load(second + i)));
  const int64_t n = range.end - i;
  if (n > 0) store(target + i, f(load(first + i, n), load(second + i, n)), n);
}

}  // namespace aether::cpu::AETHER_ISA
