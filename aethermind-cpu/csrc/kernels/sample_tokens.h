// One token a row: the argmax, or an inverse CDF over what top-k, top-p and min-p leave.
//
// Nothing is sorted. Each of the three cuts leaves a front of the descending order, and so does the inverse CDF itself:
// the chosen token is the last of the shortest front whose mass exceeds uniform * total. Fronts are found by
// quickselect over the candidates, and the candidates are first thinned to those whose probability is within some power
// of two of the greatest.
#pragma once

#include "kernels/candidates.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kSumBlock = 1024;  // in-order sampling first finds the block of tokens, then the token

AETHER_INLINE float greatest(const float* x, int64_t size) {
  Vec best = set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) best = max(load(x + i), best);
  float result = reduce_max(best);
  for (; i < size; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// The first index that holds `value`.
AETHER_INLINE int32_t index_of(const float* x, int64_t size, float value) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const uint32_t found = greater_equal_mask(load(x + i), set1(value));
    if (found) return static_cast<int32_t>(i + __builtin_ctz(found));
  }
  for (; i < size; ++i) {
    if (x[i] >= value) return static_cast<int32_t>(i);
  }
  return 0;
}

// weights[i] = exp((x[i] - maximum) / temperature); returns their sum.
AETHER_INLINE double exponentials(const float* x, int64_t size, float maximum, float temperature, float* weights) {
  double sum = 0.0;
  for (int64_t block = 0; block < size; block += kSumBlock) {
    const int64_t end = smaller(block + kSumBlock, size);
    Vec partial = zero();
    int64_t i = block;
    for (; i + kLanes <= end; i += kLanes) {
      const Vec weight = exp((load(x + i) - set1(maximum)) / set1(temperature));
      store(weights + i, weight);
      partial = partial + weight;
    }
    sum += reduce_add_double(partial);
    for (; i < end; ++i) {
      weights[i] = first_lane(exp(set1((x[i] - maximum) / temperature)));
      sum += weights[i];
    }
  }
  return sum;
}

// Inverse CDF in the order of token ids. A target that rounding keeps out of reach yields the last token that has any
// weight.
AETHER_INLINE int32_t sample_in_order(const float* weights, int64_t size, double target) {
  double sum = 0.0;
  for (int64_t block = 0; block < size; block += kSumBlock) {
    const int64_t end = smaller(block + kSumBlock, size);
    double after = sum;
    for (int64_t i = block; i < end; i += kLanes)
      after += reduce_add_double(load(weights + i, smaller(end - i, kLanes)));
    // Token by token the additions round differently, so the answer may also be the first token of the next block.
    for (int64_t i = block; after > target && i < end; ++i) {
      sum += weights[i];
      if (weights[i] > 0.0f && sum > target) return static_cast<int32_t>(i);
    }
    sum = after;
  }
  int64_t last = size - 1;
  while (last > 0 && weights[last] <= 0.0f) --last;
  return static_cast<int32_t>(last);
}

// All tokens of at least `threshold`.
AETHER_INLINE int64_t collect(const float* weights, int64_t size, float threshold, Candidate* items) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t lanes = smaller(size - i, kLanes);
    uint32_t found = greater_equal_mask(load(weights + i, lanes), set1(threshold)) & ((1u << lanes) - 1u);
    for (; found; found &= found - 1) {
      const int64_t token = i + __builtin_ctz(found);
      items[count++] = {weights[token], static_cast<int32_t>(token)};
    }
  }
  return count;
}

struct Cuts {
  int64_t top_k;
  float top_p, min_p;

  bool is_none() const { return top_k <= 0 && top_p >= 1.0f && min_p <= 0.0f; }
};

// Candidates that surely include everything the cuts leave. The greatest weight is 1, `total` is the sum of all.
AETHER_INLINE int64_t thin(const float* weights, int64_t size, double total, const Cuts& cuts, Candidate* items) {
  for (float threshold = 0x1p-8f; threshold > 0x1p-100f; threshold *= 0x1p-8f) {
    const int64_t count = collect(weights, size, threshold, items);
    if (count == size) return count;
    if (cuts.top_k > 0) {
      if (count >= cuts.top_k) return count;
    } else {
      if (threshold <= cuts.min_p) return count;
      if (cuts.top_p < 1.0f && total_weight(items, count) >= cuts.top_p * total) return count;
    }
  }
  return collect(weights, size, 0.0f, items);
}

AETHER_INLINE int32_t sample_descending(const float* weights, int64_t size, double total, const Cuts& cuts,
                                        float uniform, Candidate* items) {
  const auto weight = [](const Candidate& item) { return static_cast<double>(item.weight); };
  int64_t count = thin(weights, size, total, cuts, items);
  double mass = total;
  if (cuts.top_k > 0) {
    const double k = static_cast<double>(cuts.top_k);
    count = select_front(items, count, [](const Candidate&) { return 1.0; }, [&](double sum) { return sum >= k; });
    mass = total_weight(items, count);
  }
  if (cuts.top_p < 1.0f) {
    const double target = static_cast<double>(cuts.top_p) * mass;
    count = select_front(items, count, weight, [&](double sum) { return sum >= target; });
  }
  if (cuts.min_p > 0.0f) {
    const float threshold = cuts.min_p < 1.0f ? cuts.min_p : 1.0f;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (items[i].weight >= threshold) exchange(items[i], items[kept++]);
    }
    count = kept;
  }
  if (count == 0) return 0;  // logits are NaN, all of them
  const double target = static_cast<double>(uniform) * total_weight(items, count);
  return items[select_front(items, count, weight, [&](double sum) { return sum > target; }) - 1].token;
}

inline void sample_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t vocab = in[0].shape[1];
  float* weights = static_cast<float*>(team->scratch);
  Candidate* items = reinterpret_cast<Candidate*>(weights + round_up(vocab, kLanes));
  for_each_claimed(team, in[0].shape[0], [&](int64_t r) {
    const float* logits = data<const float>(in[0]) + r * vocab;
    int32_t& token = data<int32_t>(out[0])[r];
    const float temperature = data<const float>(in[1])[r];
    const float maximum = greatest(logits, vocab);
    if (temperature <= 0.0f) {
      token = index_of(logits, vocab, maximum);
      return;
    }
    const Cuts cuts = {data<const int32_t>(in[2])[r], data<const float>(in[3])[r], data<const float>(in[4])[r]};
    const float uniform = data<const float>(in[5])[r];
    const double total = exponentials(logits, vocab, maximum, temperature, weights);
    token = cuts.is_none() ? sample_in_order(weights, vocab, static_cast<double>(uniform) * total)
                           : sample_descending(weights, vocab, total, cuts, uniform, items);
  });
}

inline size_t sample_tokens_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  return static_cast<size_t>(round_up(in[0].shape[1], kLanes)) * (sizeof(float) + sizeof(Candidate));
}

}  // namespace aether::cpu::AETHER_ISA
