// The rows of attention: running maximum, total and weighted sum of each, as in the online softmax of FlashAttention-2
// (Dao, 2023), and how two parts of a row's keys become one.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kKeyBlock = 128;
inline constexpr float kHidden = -__builtin_inff();

// 2^x for x ≤ 0, relative error 1.5e-7; zero below -150, NaN for NaN. The polynomial is a minimax fit of (2^r - 1) / r
// on |r| ≤ 1/2.
AETHER_INLINE Vec exp2_of_nonpositive(const Vec& x) {
  const Vec clamped = max(set1(-150.0f), x);
  const Vec n = round_to_integer(clamped);
  const Vec r = clamped - n;
  Vec p = set1(0x1.5bba14p-10f);
  p = fma(p, r, set1(0x1.3cea88p-7f));
  p = fma(p, r, set1(0x1.c6b752p-5f));
  p = fma(p, r, set1(0x1.ebf9bcp-3f));
  p = fma(p, r, set1(0x1.62e42ap-1f));
  return scale_by_power_of_two(fma(p, r, set1(1.0f)), n);
}
AETHER_INLINE float exp2_of_nonpositive(float x) { return first_lane(exp2_of_nonpositive(set1(x))); }

// Of a row over some of its keys: Σ 2^(score - maximum), and as `sums` the values weighted alike.
struct Softened {
  float maximum, total;
};

// Weights as lanes of a tile of gemm.h. They are finite, and denormal ones may become zero.
template <class Lane>
AETHER_INLINE void store_weights(Lane* lanes, const Vec& weights) {
  store(lanes, weights);
}
#ifdef AETHER_HAS_PAIR_DOT
AETHER_INLINE void store_weights(BFloat16* lanes, const Vec& weights) { store_finite(lanes, weights); }
#endif

// One row of `num_vectors` · 16 scores turned into weights, in lines of a tile `line_stride` bytes apart. The row sees
// keys [begin, end) of the block. `key_factors` make scores binary logarithms, `value_factors` (or null) belong to the
// values. Returns what the sums so far are to be multiplied with.
template <class E>
AETHER_INLINE float soften_row(float* scores, int64_t num_vectors, int64_t begin, int64_t end, const float* key_factors,
                               const float* value_factors, Softened& row, char* line, int64_t line_stride) {
  using Lane = typename E::Lane;
  constexpr int64_t kVectorsOfLine = kLineK<E> / kLanes;
  const int64_t num_lines = divide_up(num_vectors, kVectorsOfLine);
  if (begin >= end) {
    for (int64_t i = 0; i < num_lines; ++i) std::memset(line + i * line_stride, 0, kLineBytes);
    return 1.0f;
  }
  Vec best = set1(kHidden);
  for (int64_t i = 0; i < num_vectors; ++i) {
    const Vec scaled = load(scores + i * kLanes) * load(key_factors + i * kLanes);
    store(scores + i * kLanes, scaled);
    if (begin == 0 && (i + 1) * kLanes <= end) best = max(best, scaled);
  }
  if (begin != 0 || num_vectors * kLanes > end) {
    for (int64_t j = 0; j < begin; ++j) scores[j] = kHidden;
    for (int64_t j = end; j < num_vectors * kLanes; ++j) scores[j] = kHidden;
    for (int64_t i = 0; i < num_vectors; ++i) best = max(best, load(scores + i * kLanes));
  }
  const float block_maximum = reduce_max(best);
  const float maximum = block_maximum > row.maximum ? block_maximum : row.maximum;
  const float factor = maximum == row.maximum ? 1.0f : exp2_of_nonpositive(row.maximum - maximum);
  Vec sum = zero();
  for (int64_t i = 0; i < num_lines * kVectorsOfLine; ++i) {
    Vec weights = zero();
    if (i < num_vectors) {
      weights = exp2_of_nonpositive(load(scores + i * kLanes) - set1(maximum));
      sum = sum + weights;
      if (value_factors) weights = weights * load(value_factors + i * kLanes);
    }
    char* target = line + i / kVectorsOfLine * line_stride;
    store_weights(reinterpret_cast<Lane*>(target) + i % kVectorsOfLine * kLanes, weights);
  }
  row.total = row.total * factor + reduce_add(sum);
  row.maximum = maximum;
  return factor;
}

// Joins the next part of a row's keys to those before it. The order of parts is fixed, so the result is the same
// wherever they were computed.
AETHER_INLINE void join_part(Softened& row, float* sums, const Softened& part, const float* part_sums, int64_t size) {
  if (part.total == 0.0f) return;  // the row sees none of these keys
  const float maximum = part.maximum > row.maximum ? part.maximum : row.maximum;
  const float before = row.total == 0.0f ? 0.0f : exp2_of_nonpositive(row.maximum - maximum);
  const float now = exp2_of_nonpositive(part.maximum - maximum);
  for (int64_t i = 0; i < size; i += kLanes) {
    const Vec added = load(part_sums + i) * set1(now);
    store(sums + i, row.total == 0.0f ? added : fma(load(sums + i), set1(before), added));
  }
  row.total = row.total * before + part.total * now;
  row.maximum = maximum;
}

// The weighted mean; zero for a row that sees no key.
template <class T>
AETHER_INLINE void write_row(const Softened& row, const float* sums, int64_t head_dim, T* out) {
  const Vec inverse = set1(row.total == 0.0f ? 0.0f : 1.0f / row.total);
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const Vec sum = row.total == 0.0f ? zero() : load(sums + i);
    store(out + i, sum * inverse, smaller(head_dim - i, kLanes));
  }
}

}  // namespace aether::cpu::AETHER_ISA
