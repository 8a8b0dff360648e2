// The rows of attention: running maximum, total and weighted sum of each, as in the online softmax of FlashAttention-2
// (Dao, 2023), and how two parts of a row's keys become one.
#pragma once

#include "kernels/gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kKeyBlock = 256;
inline constexpr float kHidden = -__builtin_inff();

// 2^x for x ≤ 0, relative error 1.5e-7; zero below -150, NaN for NaN. The polynomial is a minimax fit of (2^r - 1) / r
// on |r| ≤ 1/2. Several vectors at once keep the units busy that one chain of multiply-adds would leave waiting.
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

// Of a row over some of its keys: Σ 2^(score - maximum), and as `sums` the values weighted alike.
struct Softened {
  float maximum, total;
};

// The keys [begin, end) of a block that a row sees.
struct SeenKeys {
  int64_t begin, end;

  bool is_none() const { return begin >= end; }
  bool is_all(int64_t size) const { return begin == 0 && end >= size; }
};

// What scores are limited to: at 16 - n are sixteen lanes of which the first n are seen, at 32 - n sixteen of which the
// first n are not.
struct Edges {
  float values[48];

  constexpr Edges() : values() {
    for (int i = 0; i < 48; ++i) values[i] = i / 16 == 1 ? kHidden : -kHidden;
  }
};
inline constexpr Edges kEdges;

// Scales a row's `size` scores; those of keys that the row does not see become -∞, even of a NaN (as `min` returns its
// second operand). Returns the greatest. What becomes of a score does not depend on how many others there are.
AETHER_INLINE float scale_scores(float* scores, int64_t size, const SeenKeys& seen, const float* key_factors) {
  Vec best = set1(kHidden);
  if (seen.is_all(size)) {
    for (int64_t j = 0; j < size; j += kLanes) {
      const Vec scaled = load(scores + j) * load(key_factors + j);
      store(scores + j, scaled);
      best = max(best, scaled);
    }
    return reduce_max(best);
  }
  for (int64_t j = 0; j < size; j += kLanes) {
    const int64_t end = larger(0, smaller(seen.end - j, kLanes)), begin = larger(0, smaller(seen.begin - j, kLanes));
    const Vec scaled = load(scores + j) * load(key_factors + j);
    const Vec limited = min(min(scaled, load(kEdges.values + 16 - end)), load(kEdges.values + 32 - begin));
    store(scores + j, limited);
    best = max(best, limited);
  }
  return reduce_max(best);
}

// Vectors of weights computed at once, as registers allow.
inline constexpr int kWeightVectors = kTilePanels > 1 ? 4 : 1;

// The weights 2^(score - base) of N · 16 keys, from vector `first` of a row on, into its lines of a tile,
// which are `line_stride` bytes apart. Times `value_factors`, if they are not null; `sum` gets them without.
template <class E, int N>
AETHER_INLINE void weigh_scores(const float* scores, int64_t first, float base, const float* value_factors, Vec& sum,
                                char* line, int64_t line_stride) {
  using Lane = typename E::Lane;
  constexpr int64_t kVectorsOfLine = kLineK<E> / kLanes;
  Vec weights[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) weights[i] = load(scores + (first + i) * kLanes) - set1(base);
  exp2_of_nonpositive(weights);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    sum = sum + weights[i];
    if (value_factors) weights[i] = weights[i] * load(value_factors + (first + i) * kLanes);
    char* target = line + (first + i) / kVectorsOfLine * line_stride;
    store(reinterpret_cast<Lane*>(target) + (first + i) % kVectorsOfLine * kLanes, weights[i]);
  }
}

// The same of a whole row of `num_vectors`, and zeros to the end of its last line. Returns their sum without factors.
template <class E>
AETHER_INLINE float weigh_row(const float* scores, int64_t num_vectors, float base, const float* value_factors,
                              char* line, int64_t line_stride) {
  using Lane = typename E::Lane;
  Vec sum = zero();
  int64_t i = 0;
  for (; i + kWeightVectors <= num_vectors; i += kWeightVectors) {
    weigh_scores<E, kWeightVectors>(scores, i, base, value_factors, sum, line, line_stride);
  }
  for (; i < num_vectors; ++i) weigh_scores<E, 1>(scores, i, base, value_factors, sum, line, line_stride);
  if (kLineK<E> > kLanes && i % 2 != 0) {
    store(reinterpret_cast<Lane*>(line + i / 2 * line_stride) + kLanes, zero());
  }
  return reduce_add(sum);
}

// Turns a tile's scores, rows of `num_vectors` · 16, into weights in lines of a tile of gemm.h, and tells what `rows`
// come to. `next_seen()` tells row by row what it sees of the block, `key_factors` make scores binary logarithms,
// `value_factors` (or null) belong to the values.
template <class E, class SeenFn>
AETHER_INLINE void soften_tile(float* scores, int64_t num_rows, int64_t num_vectors, SeenFn next_seen,
                               const float* key_factors, const float* value_factors, Softened* rows, char* lines) {
  const int64_t size = num_vectors * kLanes;
  float bases[kTileRows];
  for (int64_t i = 0; i < num_rows; ++i) {
    const SeenKeys keys = next_seen();
    const float best = scale_scores(scores + i * size, size, keys, key_factors);
    rows[i].maximum = best > kHidden ? best : kHidden;
    bases[i] = keys.is_none() ? -kHidden : rows[i].maximum;
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    rows[i].total = weigh_row<E>(scores + i * size, num_vectors, bases[i], value_factors, lines + i * kLineBytes,
                                 num_rows * kLineBytes);
  }
}

// Joins the next part of a row's keys to those before it. The order of parts is fixed, so the result is the same
// wherever they were computed.
AETHER_INLINE void join_part(Softened& row, float* sums, const Softened& part, const float* part_sums, int64_t size) {
  if (part.total == 0.0f) return;  // the row sees none of these keys
  if (row.total == 0.0f) {         // nor any before
    row = part;
    std::memcpy(sums, part_sums, static_cast<size_t>(size) * sizeof(float));
    return;
  }
  const float maximum = part.maximum > row.maximum ? part.maximum : row.maximum;
  const Vec before = exp2_of_nonpositive(set1(row.maximum - maximum));
  const Vec now = exp2_of_nonpositive(set1(part.maximum - maximum));
  for (int64_t i = 0; i < size; i += kLanes) {
    store(sums + i, fma(load(sums + i), before, load(part_sums + i) * now));
  }
  row.total = row.total * first_lane(before) + part.total * first_lane(now);
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
