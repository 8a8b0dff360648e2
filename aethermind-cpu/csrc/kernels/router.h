// The row-wise operators of a mixture of experts: router_logits, router_topk, and moe_combine, the weighted sum of the
// chosen experts' results.
#pragma once

#include "kernels/reductions.h"

namespace aether::cpu::AETHER_ISA {

// Register tile of router_logits: rows of x × experts.
inline constexpr int kRouterRows = 4;
inline constexpr int kRouterExperts = 4;

// x[R rows] · w[C rows]ᵀ, both row-major of K values, in float32. Every result has one accumulator, a vector of partial
// sums along K, so that it does not depend on the size of the tile.
template <class T, int R, int C>
AETHER_INLINE void dot_rows(const T* x, const T* w, int64_t k, const T* bias, float* out, int64_t out_stride) {
  Vec sums[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = zero();
  }
  const auto add = [&](int64_t i, int64_t lanes) __attribute__((always_inline)) {
    Vec columns[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) columns[c] = load_lanes(w + c * k + i, lanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Vec row = load_lanes(x + r * k + i, lanes);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = fma(row, columns[c], sums[r][c]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) add(i, kLanes);
  if (i < k) add(i, k - i);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      out[r * out_stride + c] = reduce_add(sums[r][c]) + (bias ? element(bias + c) : 0.0f);
    }
  }
}

// router_logits: x [T, D] · w [E, D]ᵀ + bias [E], in float32. The weight is read in place.
template <class T>
void router_logits(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t rows = in[0].shape[0], k = in[0].shape[1], num_experts = in[1].shape[0];
  const int64_t row_blocks = ceil_div(rows, kRouterRows), expert_blocks = ceil_div(num_experts, 2 * kRouterExperts);
  const Range range = share(team, row_blocks * expert_blocks);
  for (int64_t item = range.begin; item < range.end; ++item) {
    const int64_t row = item / expert_blocks * kRouterRows, first = item % expert_blocks * 2 * kRouterExperts;
    const int64_t num_rows = smaller(kRouterRows, rows - row), end = smaller(first + 2 * kRouterExperts, num_experts);
    const auto multiply = [&]<int R, int C>(int64_t r, int64_t e) {
      const T* bias = data<const T>(in[2]);
      dot_rows<T, R, C>(data<const T>(in[0]) + r * k, data<const T>(in[1]) + e * k, k, bias ? bias + e : nullptr,
                        data<float>(out[0]) + r * num_experts + e, num_experts);
    };
    int64_t e = first;
    for (; e + kRouterExperts <= end; e += kRouterExperts) {
      if (num_rows == kRouterRows) {
        multiply.template operator()<kRouterRows, kRouterExperts>(row, e);
      } else {
        for (int64_t r = row; r < row + num_rows; ++r) multiply.template operator()<1, kRouterExperts>(r, e);
      }
    }
    for (; e < end; ++e) {
      for (int64_t r = row; r < row + num_rows; ++r) multiply.template operator()<1, 1>(r, e);
    }
  }
}

// Attributes of router_topk.
struct RouterAttributes {
  int64_t k;
  bool is_sigmoid, is_renormalized;
  int64_t num_groups, top_groups, group_score_k;
  float scale;

  explicit RouterAttributes(const am_attr* attrs)
      : k(attrs[0].i),
        is_sigmoid(attrs[1].i != 0),
        is_renormalized(attrs[2].i != 0),
        num_groups(attrs[3].i),
        top_groups(attrs[4].i),
        group_score_k(attrs[5].i),
        scale(static_cast<float>(attrs[6].f)) {}
};

// Replaces the greatest value, the first of equal ones, by -inf; returns its index.
AETHER_INLINE int64_t take_greatest(float* values, int64_t size) {
  const int64_t index = first_not_less(values, size, max_of_row(values, size));
  values[index] = -__builtin_inff();
  return index;
}

// Sets the values outside of the best groups to -inf. `scratch` has space for `size` values.
AETHER_INLINE void keep_best_groups(float* values, int64_t size, const RouterAttributes& attributes, float* scratch) {
  const int64_t group_size = size / attributes.num_groups;
  float* sums = scratch + group_size;
  for (int64_t group = 0; group < attributes.num_groups; ++group) {
    std::memcpy(scratch, values + group * group_size, static_cast<size_t>(group_size) * sizeof(float));
    sums[group] = 0.0f;
    for (int64_t i = 0; i < smaller(attributes.group_score_k, group_size); ++i) {
      sums[group] += values[group * group_size + take_greatest(scratch, group_size)];
    }
  }
  for (int64_t i = 0; i < attributes.top_groups; ++i) take_greatest(sums, attributes.num_groups);
  for (int64_t group = 0; group < attributes.num_groups; ++group) {
    const bool is_best = sums[group] == -__builtin_inff();
    for (int64_t i = 0; !is_best && i < group_size; ++i) values[group * group_size + i] = -__builtin_inff();
  }
}

AETHER_INLINE Vec sigmoid_of(const Vec& x) { return set1(1.0f) / (set1(1.0f) + exp(-x)); }

// router_topk: the experts of each token, ties to the lower index, and their weights.
inline void router_topk(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const RouterAttributes attributes(attrs);
  const int64_t size = in[0].shape[1];
  const float* correction = data<const float>(in[1]);
  float* scores = static_cast<float*>(team->scratch);
  float* order = scores + round_up(size, kLanes);
  float* scratch = order + round_up(size, kLanes);
  // Without a correction, experts are selected by logits: scores have the same order, but may round to equal values.
  const bool has_groups = attributes.top_groups < attributes.num_groups, is_by_logit = !correction && !has_groups;
  const Range rows = share(team, in[0].shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* logits = data<const float>(in[0]) + r * size;
    const Vec greatest = set1(max_of_row(logits, size));
    Vec total = zero();
    for (int64_t i = 0; i < size; i += kLanes) {
      const int64_t lanes = smaller(size - i, kLanes);
      const Vec logit = load_lanes(logits + i, lanes);
      store(scores + i, attributes.is_sigmoid ? sigmoid_of(logit) : exp_or_infinity(logit - greatest), lanes);
      total = total + load_lanes(scores + i, lanes);
    }
    const Vec factor = set1(attributes.is_sigmoid ? 1.0f : static_cast<float>(1.0 / reduce_add_double(total)));
    for (int64_t i = 0; i < size; i += kLanes) {
      const int64_t lanes = smaller(size - i, kLanes);
      const Vec score = load_lanes(scores + i, lanes) * factor;
      store(scores + i, score, lanes);
      const Vec corrected = correction ? score + load_lanes(correction + i, lanes) : score;
      store(order + i, is_by_logit ? load_lanes(logits + i, lanes) : corrected, lanes);
    }
    if (has_groups) keep_best_groups(order, size, attributes, scratch);
    int32_t* ids = data<int32_t>(out[0]) + r * attributes.k;
    float* weights = data<float>(out[1]) + r * attributes.k;
    float sum = 0.0f;
    for (int64_t i = 0; i < attributes.k; ++i) {
      ids[i] = static_cast<int32_t>(take_greatest(order, size));
      weights[i] = scores[ids[i]];
      sum += weights[i];
    }
    const float divisor = attributes.is_renormalized ? sum + 1e-20f : 1.0f;
    for (int64_t i = 0; i < attributes.k; ++i) weights[i] = weights[i] / divisor * attributes.scale;
  }
}

inline size_t router_topk_scratch(const am_tensor* in, const am_tensor*, const am_attr* attrs, int32_t) {
  const int64_t num_floats = 3 * round_up(in[0].shape[1], kLanes) + round_up(attrs[3].i, kLanes);
  return static_cast<size_t>(num_floats) * sizeof(float);
}

// moe_combine: out[t] = Σ_a weights[t][a] · x[t][a], in the order of a.
template <class T>
void moe_combine(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t experts_per_token = in[0].shape[1], size = in[0].shape[2], vectors = ceil_div(size, kLanes);
  constexpr int64_t kGrain = 64 / kLanes;  // cache lines of a 16-bit type
  const Range range = share(team, num_rows(out[0]) * vectors, kGrain);
  for (int64_t i = range.begin; i < range.end;) {
    const int64_t t = i / vectors, end = smaller((t + 1) * vectors, range.end);
    const T* x = data<const T>(in[0]) + t * experts_per_token * size;
    const float* weights = data<const float>(in[1]) + t * experts_per_token;
    for (; i < end; ++i) {
      const int64_t column = i % vectors * kLanes, lanes = smaller(size - column, kLanes);
      Vec sum = zero();
      for (int64_t a = 0; a < experts_per_token; ++a) {
        sum = fma(set1(weights[a]), load_lanes(x + a * size + column, lanes), sum);
      }
      store(data<T>(out[0]) + t * size + column, sum, lanes);
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
