// ALiBi: scores + slopes[h] · (key position - query position); the last query is at the last key's position.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr float kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

template <class T>
void alibi(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int32_t ndim = in[0].ndim;
  const int64_t heads = in[0].shape[ndim - 3], queries = in[0].shape[ndim - 2], keys = in[0].shape[ndim - 1];
  const Range rows = share(team, num_rows(in[0]));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* scores = data<const T>(in[0]) + r * keys;
    T* target = data<T>(out[0]) + r * keys;
    const int64_t position = keys - queries + r % queries;
    const Vec slope = set1(data<const float>(in[1])[r / queries % heads]);
    for (int64_t j = 0; j < keys; j += kLanes) {
      const int64_t n = smaller(keys - j, kLanes);
      const Vec distance = set1(static_cast<float>(j - position)) + load(kLaneNumbers);
      store(target + j, load(scores + j, n) + slope * distance, n);
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
