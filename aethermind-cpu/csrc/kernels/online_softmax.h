// Online softmax of attention rows (FlashAttention-2, Dao, 2023): the maximum and the sum of each row, its weighted
// sums of values, and the merge of two key blocks' results.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kKeyBlock = 256;
inline constexpr float kMasked = -__builtin_inff();
inline constexpr float kLog2E = 1.44269504f;

// 2^x for x ≤ 0, relative error 1.5e-7; zero below -150, NaN for NaN. The polynomial is a minimax fit of (2^r - 1) / r
// on |r| ≤ 1/2. Several vectors are interleaved to hide the latency of one FMA chain.
template <int N>
AETHER_INLINE void exp2_of_nonpositive(Vec (&x)[N]) {
  constexpr float kCoefficients[] = {0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f, 0x1.62e42ap-1f, 1.0f};
  Vec n[N], p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = max(set1(-150.0f), x[i]);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) n[i] = round_to_integer(x[i]);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = x[i] - n[i], p[i] = set1(0x1.5bba14p-10f);
#pragma GCC unroll 5
  for (float coefficient : kCoefficients) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], x[i], set1(coefficient));
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = scale_by_power_of_two(p[i], n[i]);
}
AETHER_INLINE Vec exp2_of_nonpositive(const Vec& x) {
  Vec result[1] = {x};
  exp2_of_nonpositive(result);
  return result[0];
}
AETHER_INLINE float exp2_of_nonpositive(float x) { return first_lane(exp2_of_nonpositive(set1(x))); }

// State of a row over some of its keys: max = the greatest score, sum = Σ 2^(score - max). The row's weighted sums of
// values are Σ 2^(score - max) · value.
struct OnlineSoftmaxState {
  float max, sum;
};

// The keys [begin, end) of a key block that a row may attend to.
struct KeyRange {
  int64_t begin, end;

  bool is_empty() const { return begin >= end; }
  bool covers(int64_t size) const { return begin == 0 && end >= size; }
};

// Upper limits of scores, a sliding mask. The sixteen limits at 16 - n leave the first n lanes and mask the others,
// those at 32 - n mask the first n lanes.
struct TailMask {
  float values[48];

  constexpr TailMask() : values() {
    for (int i = 0; i < 48; ++i) values[i] = i / 16 == 1 ? kMasked : -kMasked;
  }
};
inline constexpr TailMask kTailMask;

// Scales a row's `size` scores and returns the greatest. Scores outside `range` become -∞, even NaN (`min` returns its
// second operand). A score's result does not depend on how many others there are.
AETHER_INLINE float scale_scores(float* scores, int64_t size, const KeyRange& range, const float* key_scales) {
  Vec row_max = set1(kMasked);
  if (range.covers(size)) {
    for (int64_t j = 0; j < size; j += kLanes) {
      const Vec scaled = load(scores + j) * load(key_scales + j);
      store(scores + j, scaled);
      row_max = max(row_max, scaled);
    }
    return reduce_max(row_max);
  }
  for (int64_t j = 0; j < size; j += kLanes) {
    const int64_t end = larger(0, smaller(range.end - j, kLanes)), begin = larger(0, smaller(range.begin - j, kLanes));
    const Vec scaled = load(scores + j) * load(key_scales + j);
    const Vec limited = min(min(scaled, load(kTailMask.values + 16 - end)), load(kTailMask.values + 32 - begin));
    store(scores + j, limited);
    row_max = max(row_max, limited);
  }
  return reduce_max(row_max);
}

// Scales of scores that are scaled already.
struct UnitScales {
  float values[kKeyBlock];

  constexpr UnitScales() : values() {
    for (float& value : values) value = 1.0f;
  }
};
inline constexpr UnitScales kUnitScales;

struct LaneNumbers {
  float values[kLanes];

  constexpr LaneNumbers() : values() {
    for (int i = 0; i < kLanes; ++i) values[i] = static_cast<float>(i);
  }
};
inline constexpr LaneNumbers kLaneNumbers;

// Scales a row's `size` scores, limits their magnitude smoothly to `cap` if it is positive, and adds `slope` · (key -
// query), keys being numbered from 0. All are binary logarithms.
__attribute__((noinline)) inline void transform_scores(float* scores, int64_t size, const float* key_scales, float cap,
                                                       float slope, int64_t query) {
  const Vec inverse = set1(cap > 0.0f ? 1.0f / cap : 0.0f);
  for (int64_t j = 0; j < size; j += kLanes) {
    Vec x = load(scores + j) * load(key_scales + j);
    if (cap > 0.0f) x = set1(cap) * tanh(x * inverse);
    if (slope != 0.0f) {
      x = fma(set1(slope), load(kLaneNumbers.values) + set1(static_cast<float>(j - query)), x);
    }
    store(scores + j, x);
  }
}

// Vectors of exponentials that are interleaved.
inline constexpr int kExpVectors = kTilePanels > 1 ? 4 : 1;

// Writes the weights 2^(score - base) of N · 16 keys, from vector `first` of a row on, to its lines of a packed tile,
// `line_stride` bytes apart. `sum` accumulates the weights before they are multiplied by `value_scales` (which may be
// null).
template <class Micro, int N>
AETHER_INLINE void exp_scores(const float* scores, int64_t first, float base, const float* value_scales, Vec& sum,
                              char* line, int64_t line_stride) {
  using Activation = typename Micro::Activation;
  constexpr int64_t kVectorsOfLine = kLineK<Micro> / kLanes;
  Vec weights[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) weights[i] = load(scores + (first + i) * kLanes) - set1(base);
  exp2_of_nonpositive(weights);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    sum = sum + weights[i];
    if (value_scales) weights[i] = weights[i] * load(value_scales + (first + i) * kLanes);
    char* target = line + (first + i) / kVectorsOfLine * line_stride;
    store(reinterpret_cast<Activation*>(target) + (first + i) % kVectorsOfLine * kLanes, weights[i]);
  }
}

// The same for a whole row of `num_vectors`, padded with zeros to a whole line. Returns the sum of the weights.
template <class Micro>
AETHER_INLINE float exp_row(const float* scores, int64_t num_vectors, float base, const float* value_scales, char* line,
                            int64_t line_stride) {
  using Activation = typename Micro::Activation;
  Vec sum = zero();
  int64_t i = 0;
  for (; i + kExpVectors <= num_vectors; i += kExpVectors) {
    exp_scores<Micro, kExpVectors>(scores, i, base, value_scales, sum, line, line_stride);
  }
  for (; i < num_vectors; ++i) exp_scores<Micro, 1>(scores, i, base, value_scales, sum, line, line_stride);
  if (kLineK<Micro> > kLanes && i % 2 != 0) {
    store(reinterpret_cast<Activation*>(line + i / 2 * line_stride) + kLanes, zero());
  }
  return reduce_add(sum);
}

// Softmax of a tile: turns scores, rows of `num_vectors` · 16, into weights in a packed tile (gemm.h) and sets the
// rows' states. `next_range()` is the range of keys of each row in turn. `key_scales(i, scores)` are the factors that
// turn the scores of row i, which it may change first, into binary logarithms; `value_scales` (or null) are the
// dequantisation scales of values.
template <class Micro, class RangeFn, class ScalesFn>
AETHER_INLINE void softmax_tile(float* scores, int64_t num_rows, int64_t num_vectors, RangeFn next_range,
                                ScalesFn key_scales, const float* value_scales, OnlineSoftmaxState* rows, char* lines) {
  const int64_t size = num_vectors * kLanes;
  float bases[kTileRows];
  for (int64_t i = 0; i < num_rows; ++i) {
    const KeyRange range = next_range();
    float* row = scores + i * size;
    const float row_max = scale_scores(row, size, range, key_scales(i, row));
    rows[i].max = row_max > kMasked ? row_max : kMasked;
    bases[i] = range.is_empty() ? -kMasked : rows[i].max;
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    rows[i].sum = exp_row<Micro>(scores + i * size, num_vectors, bases[i], value_scales, lines + i * kLineBytes,
                                 num_rows * kLineBytes);
  }
}

// Merges the next key block of a row into the blocks before it. The order of merges is fixed, so the result does not
// depend on which worker computed what.
AETHER_INLINE void merge_partials(OnlineSoftmaxState& row, float* sums, const OnlineSoftmaxState& partial,
                                  const float* partial_sums, int64_t size) {
  if (partial.sum == 0.0f) return;  // the row attends to none of these keys
  if (row.sum == 0.0f) {            // nor to any before
    row = partial;
    std::memcpy(sums, partial_sums, static_cast<size_t>(size) * sizeof(float));
    return;
  }
  const float maximum = partial.max > row.max ? partial.max : row.max;
  const Vec before = exp2_of_nonpositive(set1(row.max - maximum));
  const Vec now = exp2_of_nonpositive(set1(partial.max - maximum));
  for (int64_t i = 0; i < size; i += kLanes) {
    store(sums + i, fma(load(sums + i), before, load(partial_sums + i) * now));
  }
  row.sum = row.sum * first_lane(before) + partial.sum * first_lane(now);
  row.max = maximum;
}

// 1 / Σ 2^score, relative to the row's maximum, where a sink (a binary logarithm) adds 2^sink to the sum.
AETHER_INLINE float inverse_with_sink(const OnlineSoftmaxState& row, float sink) {
  const float maximum = sink > row.max ? sink : row.max;
  const float weight = exp2_of_nonpositive(row.max - maximum);
  return weight / (row.sum * weight + exp2_of_nonpositive(sink - maximum));
}

// Writes the normalised output row; zero for a row that attends to no key. `sink` is null, or points to the row's sink.
template <class T>
AETHER_INLINE void write_output(const OnlineSoftmaxState& row, const float* sums, int64_t head_dim, const float* sink,
                                T* out) {
  const Vec inverse = set1(row.sum == 0.0f ? 0.0f : sink ? inverse_with_sink(row, *sink * kLog2E) : 1.0f / row.sum);
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const Vec sum = row.sum == 0.0f ? zero() : load(sums + i);
    store(out + i, sum * inverse, smaller(head_dim - i, kLanes));
  }
}

}  // namespace aether::cpu::AETHER_ISA
