// Samples one token per row: the argmax, or an inverse CDF over the tokens that top-k, top-p and min-p keep.
//
// Nothing is sorted. Each of the three filters keeps a prefix of the descending order, and so does the inverse CDF: the
// chosen token is the last of the shortest prefix whose mass exceeds uniform · total. Prefixes are found by quickselect
// over the candidates, which are first reduced to the tokens whose probability is within some power of two of the
// greatest.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

struct Candidate {
  float weight;  // probability, up to a factor
  int32_t token;
};

// Descending probability, lower token id first on ties: a total order.
AETHER_INLINE bool comes_before(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
}

AETHER_INLINE void swap_candidates(Candidate& a, Candidate& b) {
  const Candidate saved = a;
  a = b;
  b = saved;
}

// Partitions items[begin, end) around the median of three, and returns the pivot's index.
inline int64_t partition(Candidate* items, int64_t begin, int64_t end) {
  const int64_t last = end - 1, middle = begin + (end - begin) / 2;
  if (comes_before(items[middle], items[begin])) swap_candidates(items[middle], items[begin]);
  if (comes_before(items[last], items[begin])) swap_candidates(items[last], items[begin]);
  if (comes_before(items[last], items[middle])) swap_candidates(items[last], items[middle]);
  swap_candidates(items[middle], items[last]);
  const Candidate pivot = items[last];
  int64_t pivot_index = begin;
  for (int64_t i = begin; i < last; ++i) {
    if (comes_before(items[i], pivot)) swap_candidates(items[i], items[pivot_index++]);
  }
  swap_candidates(items[pivot_index], items[last]);
  return pivot_index;
}

// Reorders the items so that a prefix of their descending order comes first, and returns its length: the shortest
// prefix whose measures satisfy `is_enough(sum)`, or all items. The last item of the prefix is the one that made it
// enough. Quickselect: linear on average.
template <class Measure, class Enough>
AETHER_INLINE int64_t select_prefix(Candidate* items, int64_t count, Measure measure, Enough is_enough) {
  int64_t begin = 0, end = count;
  double sum = 0.0;
  while (begin < end) {
    const int64_t pivot_index = partition(items, begin, end);
    double before = sum;
    for (int64_t i = begin; i < pivot_index; ++i) before += measure(items[i]);
    if (pivot_index > begin && is_enough(before)) {
      end = pivot_index;
      continue;
    }
    sum = before + measure(items[pivot_index]);
    begin = pivot_index + 1;
    if (is_enough(sum)) break;
  }
  return begin;
}

AETHER_INLINE double total_weight(const Candidate* items, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += items[i].weight;
  return sum;
}

inline constexpr int64_t kSumBlock = 1024;  // sample_in_order first finds the block of tokens, then the token

AETHER_INLINE float greatest(const float* x, int64_t size) {
  Vec maximum = set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) maximum = max(load(x + i), maximum);
  float result = reduce_max(maximum);
  for (; i < size; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// The first index whose element equals `value`, the greatest.
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

// Inverse CDF in the order of token ids. If rounding puts the target out of reach, the last token of nonzero
// weight is returned.
AETHER_INLINE int32_t sample_in_order(const float* weights, int64_t size, double target) {
  double sum = 0.0;
  for (int64_t block = 0; block < size; block += kSumBlock) {
    const int64_t end = smaller(block + kSumBlock, size);
    double after = sum;
    for (int64_t i = block; i < end; i += kLanes)
      after += reduce_add_double(load(weights + i, smaller(end - i, kLanes)));
    // Adding token by token rounds differently, so the result may also be the first token of the next block.
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

// Collects all tokens of at least `threshold`.
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

struct Filters {
  int64_t top_k;
  float top_p, min_p;

  bool is_none() const { return top_k <= 0 && top_p >= 1.0f && min_p <= 0.0f; }
};

// Reduces the tokens to candidates, a superset of what the filters keep. The greatest weight is 1; `total` is the sum
// of all.
AETHER_INLINE int64_t collect_candidates(const float* weights, int64_t size, double total, const Filters& filters,
                                         Candidate* items) {
  for (float threshold = 0x1p-8f; threshold > 0x1p-100f; threshold *= 0x1p-8f) {
    const int64_t count = collect(weights, size, threshold, items);
    if (count == size) return count;
    if (filters.top_k > 0) {
      if (count >= filters.top_k) return count;
    } else {
      if (threshold <= filters.min_p) return count;
      if (filters.top_p < 1.0f && total_weight(items, count) >= filters.top_p * total) return count;
    }
  }
  return collect(weights, size, 0.0f, items);
}

AETHER_INLINE int32_t sample_descending(const float* weights, int64_t size, double total, const Filters& filters,
                                        float uniform, Candidate* items) {
  const auto weight = [](const Candidate& item) { return static_cast<double>(item.weight); };
  int64_t count = collect_candidates(weights, size, total, filters, items);
  double mass = total;
  if (filters.top_k > 0) {
    const double k = static_cast<double>(filters.top_k);
    count = select_prefix(items, count, [](const Candidate&) { return 1.0; }, [&](double sum) { return sum >= k; });
    mass = total_weight(items, count);
  }
  if (filters.top_p < 1.0f) {
    const double target = static_cast<double>(filters.top_p) * mass;
    count = select_prefix(items, count, weight, [&](double sum) { return sum >= target; });
  }
  if (filters.min_p > 0.0f) {
    const float threshold = filters.min_p < 1.0f ? filters.min_p : 1.0f;
    int64_t saved = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (items[i].weight >= threshold) swap_candidates(items[i], items[saved++]);
    }
    count = saved;
  }
  if (count == 0) return 0;  // all logits are NaN
  const double target = static_cast<double>(uniform) * total_weight(items, count);
  return items[select_prefix(items, count, weight, [&](double sum) { return sum > target; }) - 1].token;
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
    const Filters filters = {data<const int32_t>(in[2])[r], data<const float>(in[3])[r], data<const float>(in[4])[r]};
    const float uniform = data<const float>(in[5])[r];
    const double total = exponentials(logits, vocab, maximum, temperature, weights);
    token = filters.is_none() ? sample_in_order(weights, vocab, static_cast<double>(uniform) * total)
                              : sample_descending(weights, vocab, total, filters, uniform, items);
  });
}

inline size_t sample_tokens_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  return static_cast<size_t>(round_up(in[0].shape[1], kLanes)) * (sizeof(float) + sizeof(Candidate));
}

}  // namespace aether::cpu::AETHER_ISA
