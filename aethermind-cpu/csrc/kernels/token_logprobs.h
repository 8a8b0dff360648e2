// Log-probability and rank of one token per row, and the k most probable tokens.
#pragma once

#include <math.h>

#include "kernels/sample_tokens.h"

namespace aether::cpu::AETHER_ISA {

AETHER_INLINE double sum_of_exponentials(const float* x, int64_t size, float maximum) {
  double sum = 0.0;
  for (int64_t block = 0; block < size; block += kSumBlock) {
    const int64_t end = smaller(block + kSumBlock, size);
    Vec partial = zero();
    int64_t i = block;
    for (; i + kLanes <= end; i += kLanes) partial = partial + exp(load(x + i) - set1(maximum));
    sum += reduce_add_double(partial);
    for (; i < end; ++i) sum += first_lane(exp(set1(x[i] - maximum)));
  }
  return sum;
}

AETHER_INLINE int32_t count_greater(const float* x, int64_t size, float value) {
  int32_t count = 0;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) count += __builtin_popcount(greater_mask(load(x + i), set1(value)));
  for (; i < size; ++i) count += x[i] > value ? 1 : 0;
  return count;
}

// The k greatest in descending order, lower index first on ties, by insertion: one comparison rejects most vectors of
// sixteen.
AETHER_INLINE void find_top(const float* x, int64_t size, int64_t k, int32_t* ids, float* values) {
  int64_t count = 0;
  const auto insert = [&](int64_t index) {
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && values[place - 1] < x[index]; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = x[index];
    ids[place] = static_cast<int32_t>(index);
  };
  int64_t i = 0;
  for (; i < smaller(k, size); ++i) insert(i);
  for (; k > 0 && i < size; i += kLanes) {
    const int64_t lanes = smaller(size - i, kLanes);
    uint32_t found = greater_mask(load(x + i, lanes), set1(values[k - 1])) & ((1u << lanes) - 1u);
    for (; found; found &= found - 1) {
      const int64_t index = i + __builtin_ctz(found);
      if (x[index] > values[k - 1]) insert(index);
    }
  }
  for (; count < k; ++count) {
    ids[count] = -1;
    values[count] = -__builtin_inff();
  }
}

inline void token_logprobs(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t vocab = in[0].shape[1], k = attrs[0].i;
  for_each_claimed(team, in[0].shape[0], [&](int64_t r) {
    const float* logits = data<const float>(in[0]) + r * vocab;
    const float maximum = greatest(logits, vocab);
    const double log_sum = static_cast<double>(maximum) + ::log(sum_of_exponentials(logits, vocab, maximum));
    const float logit = logits[data<const int32_t>(in[1])[r]];
    data<float>(out[0])[r] = static_cast<float>(static_cast<double>(logit) - log_sum);
    data<int32_t>(out[1])[r] = 1 + count_greater(logits, vocab, logit);
    float* top_logprobs = data<float>(out[3]) + r * k;
    find_top(logits, vocab, k, data<int32_t>(out[2]) + r * k, top_logprobs);
    for (int64_t i = 0; i < k; ++i)
      top_logprobs[i] = static_cast<float>(static_cast<double>(top_logprobs[i]) - log_sum);
  });
}

}  // namespace aether::cpu::AETHER_ISA
