// Linear recurrences whose state is a matrix [depth, width] per head: gated_delta_rule and ssd_scan.
//
// For each token the state decays, the outer product of a key and an update is added, and a query reads the state.
// Columns of a state do not depend on each other: a work item is a sequence, a head and a block of columns that fits
// into L1, and processes the sequence's tokens in order. So the state is read and written once a token from L1, and
// results do not depend on how a sequence is divided into steps.
#pragma once

#include "kernels/norms.h"
#include "kernels/state_slots.h"

namespace aether::cpu::AETHER_ISA {

// Vectors of columns in a work item: accumulators of the prediction and of the result.
inline constexpr int kStateVectors = kTilePanels > 1 ? 4 : 2;
inline constexpr int64_t kStateColumns = kStateVectors * kLanes;

// ln(1 + e^x).
AETHER_INLINE float softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + __builtin_log1pf(__builtin_expf(-__builtin_fabsf(x)));
}

// One token of one head: its query and key (float [depth]) and the factor of the state; beta is the delta rule's.
struct StateToken {
  const float *query, *key;
  float decay, beta;
};

// Processes a token in `V` vectors of columns, whose rows are `stride` apart. The results replace the values. With the
// delta rule a value is first replaced by beta · (value - Σ key · state).
template <bool kIsDelta, int V, class LoadFn, class StoreFn>
AETHER_INLINE void take_up(const StateToken& token, int64_t depth, float* state, int64_t stride, Vec (&values)[V],
                           LoadFn load_row, StoreFn store_row) {
  const Vec decay = set1(token.decay);
  if constexpr (kIsDelta) {
    Vec predicted[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) predicted[v] = zero();
    for (int64_t d = 0; d < depth; ++d) {
      const Vec key = set1(token.key[d]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) predicted[v] = fma(key, load_row(state + d * stride + v * kLanes), predicted[v]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) values[v] = set1(token.beta) * (values[v] - decay * predicted[v]);
  }
  Vec results[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) results[v] = zero();
  for (int64_t d = 0; d < depth; ++d) {
    const Vec key = set1(token.key[d]), query = set1(token.query[d]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      float* row = state + d * stride + v * kLanes;
      const Vec updated = fma(key, values[v], decay * load_row(row));
      store_row(row, updated);
      results[v] = fma(query, updated, results[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) values[v] = results[v];
}

// Processes a token in `count` columns, at most kStateColumns. `value_at(c, lanes)` returns the values of columns
// c … c + lanes - 1, and `put(c, lanes, result)` takes their results.
template <bool kIsDelta, class ValueFn, class PutFn>
AETHER_INLINE void take_up_columns(const StateToken& token, int64_t depth, float* state, int64_t stride, int64_t count,
                                   ValueFn value_at, PutFn put) {
  if (count == kStateColumns) {
    Vec values[kStateVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kStateVectors; ++v) values[v] = value_at(v * kLanes, kLanes);
    take_up<kIsDelta>(
        token, depth, state, stride, values, [](const float* p) __attribute__((always_inline)) { return load(p); },
        [](float* p, const Vec& x) __attribute__((always_inline)) { store(p, x); });
#pragma GCC unroll 4
    for (int v = 0; v < kStateVectors; ++v) put(v * kLanes, kLanes, values[v]);
    return;
  }
  for (int64_t c = 0; c < count; c += kLanes) {
    const int64_t lanes = smaller(count - c, kLanes);
    Vec values[1] = {value_at(c, lanes)};
    take_up<kIsDelta>(
        token, depth, state + c, stride, values,
        [lanes](const float* p) __attribute__((always_inline)) { return load(p, lanes); },
        [lanes](float* p, const Vec& x) __attribute__((always_inline)) { store(p, x, lanes); });
    put(c, lanes, values[0]);
  }
}

AETHER_INLINE void clear_columns(float* state, int64_t depth, int64_t stride, int64_t count) {
  for (int64_t d = 0; d < depth; ++d) {
    for (int64_t c = 0; c < count; c += kLanes) store(state + d * stride + c, zero(), smaller(count - c, kLanes));
  }
}

// Sizes of a state [N, H, depth, width] and of the rows that hold what its tokens need, `row_size` elements each.
struct StateShape {
  int64_t num_heads, depth, width, num_groups, row_size;

  StateShape(const am_tensor& state, const am_tensor& rows)
      : num_heads(state.shape[1]),
        depth(state.shape[2]),
        width(state.shape[3]),
        num_groups((last_dim(rows) - num_heads * width) / (2 * depth)),
        row_size(last_dim(rows)) {}

  AETHER_INLINE int64_t group_of(int64_t head) const { return head / (num_heads / num_groups); }
};

// Calls `advance(t, head, first, count, state)` for every token t and block of columns of every head, in the order of
// tokens; `state` points to the first column.
template <class F>
AETHER_INLINE void for_each_token(const StateShape& shape, const StateSlots& sequences, const am_tensor& states,
                                  const am_team* team, F advance) {
  const int64_t num_blocks = ceil_div(shape.width, kStateColumns), num_items = shape.num_heads * num_blocks;
  for_each_claimed(team, sequences.num_sequences * num_items, [&](int64_t item) {
    const int64_t s = item / num_items, head = item % num_items / num_blocks;
    const int64_t first = item % num_blocks * kStateColumns, count = smaller(shape.width - first, kStateColumns);
    const Range rows = sequences.rows(s);
    if (rows.begin == rows.end) return;
    const int64_t matrix = sequences.slots[s] * shape.num_heads + head;
    float* state = data<float>(states) + matrix * shape.depth * shape.width + first;
    if (sequences.is_new(s)) clear_columns(state, shape.depth, shape.width, count);
    for (int64_t t = rows.begin; t < rows.end; ++t) advance(t, head, first, count, state);
  });
}

// target = source · factor, in float32.
template <class T>
AETHER_INLINE void scale_into(const T* source, int64_t size, float factor, float* target) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t lanes = smaller(size - i, kLanes);
    store(target + i, load(source + i, lanes) * set1(factor), lanes);
  }
}

// in: qkv, a, b, a_log, dt_bias, state, tables. A row of qkv is q [G, depth], k [G, depth], v [H, width].
template <class T>
void gated_delta_rule(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const StateShape shape(in[5], in[0]);
  const float scale = static_cast<float>(attrs[0].f), eps = static_cast<float>(attrs[1].f);
  float *query = static_cast<float*>(team->scratch), *key = query + shape.depth;
  const auto advance = [&](int64_t t, int64_t head, int64_t first, int64_t count, float* state) {
    const T* q = data<const T>(in[0]) + t * shape.row_size + shape.group_of(head) * shape.depth;
    const T* k = q + shape.num_groups * shape.depth;
    const T* v = data<const T>(in[0]) + t * shape.row_size + 2 * shape.num_groups * shape.depth + head * shape.width;
    const auto inverse_norm = [&](const T* x) {
      const auto values = [x](int64_t i, int64_t lanes)
                              __attribute__((always_inline)) { return load_lanes(x + i, lanes); };
      return 1.0f / __builtin_sqrtf(sum_of_squares(shape.depth, values) + eps);
    };
    scale_into(q, shape.depth, inverse_norm(q) * scale, query);
    scale_into(k, shape.depth, inverse_norm(k), key);
    const int64_t gate = t * shape.num_heads + head;
    const float rate = __builtin_expf(data<const float>(in[3])[head]);
    const float step = softplus(element(data<const T>(in[1]) + gate) + data<const float>(in[4])[head]);
    const float beta = 1.0f / (1.0f + __builtin_expf(-element(data<const T>(in[2]) + gate)));
    T* target = data<T>(out[0]) + gate * shape.width + first;
    take_up_columns<true>(
        {query, key, __builtin_expf(-rate * step), beta}, shape.depth, state, shape.width, count,
        [&](int64_t c, int64_t lanes) __attribute__((always_inline)) { return load(v + first + c, lanes); },
        [&](int64_t c, int64_t lanes, const Vec& x) __attribute__((always_inline)) { store(target + c, x, lanes); });
  };
  for_each_token(shape, StateSlots(in + 6), out[1], team, advance);
}

// in: xbc, dt, a_log, dt_bias, d, state, tables. A row of xbc is x [H, width], b [G, depth], c [G, depth].
template <class T>
void ssd_scan(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const StateShape shape(in[5], in[0]);
  const float dt_min = static_cast<float>(attrs[0].f), dt_max = static_cast<float>(attrs[1].f);
  float *query = static_cast<float*>(team->scratch), *key = query + shape.depth;
  const auto advance = [&](int64_t t, int64_t head, int64_t first, int64_t count, float* state) {
    const T* row = data<const T>(in[0]) + t * shape.row_size;
    const T *x = row + head * shape.width + first, *b = row + shape.num_heads * shape.width;
    const int64_t group = shape.group_of(head) * shape.depth;
    scale_into(b + group, shape.depth, 1.0f, key);
    scale_into(b + shape.num_groups * shape.depth + group, shape.depth, 1.0f, query);
    const int64_t gate = t * shape.num_heads + head;
    float step = softplus(element(data<const T>(in[1]) + gate) + data<const float>(in[3])[head]);
    if (step < dt_min) step = dt_min;
    if (dt_max > 0.0f && step > dt_max) step = dt_max;
    const float decay = __builtin_expf(-__builtin_expf(data<const float>(in[2])[head]) * step);
    const Vec steps = set1(step), skip = set1(data<const float>(in[4])[head]);
    T* target = data<T>(out[0]) + gate * shape.width + first;
    take_up_columns<false>(
        {query, key, decay, 0.0f}, shape.depth, state, shape.width, count,
        [&](int64_t c, int64_t lanes) __attribute__((always_inline)) { return steps * load(x + c, lanes); },
        [&](int64_t c, int64_t lanes, const Vec& result)
            __attribute__((always_inline)) { store(target + c, fma(skip, load(x + c, lanes), result), lanes); });
  };
  for_each_token(shape, StateSlots(in + 6), out[1], team, advance);
}

// The query and the key of a token.
inline size_t recurrent_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  return static_cast<size_t>(2 * in[5].shape[2]) * sizeof(float);
}

}  // namespace aether::cpu::AETHER_ISA
