// Causal attention over the paged cache, with the online softmax of FlashAttention-2.
//
// A unit of work is a sequence, one of its kv heads and a run of its queries: the query heads that share the kv head
// and the queries of the run are rows of one small matrix, so that every key and value is read once for all of them.
// Keys come in blocks at fixed multiples of kKeyBlock, whatever the run, so a query's result depends neither on the
// other queries nor on the number of workers. Everything but the inputs is float32.
#pragma once

#include "kernels/attention_tiles.h"
#include "kernels/kv_cache_write.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kKeyBlock = 64;
inline constexpr int64_t kQueryRows = 64;

// A unit's scratch: packed queries, packed keys, scores, sums of values, and per row the running maximum, total and
// rescaling factor.
template <class T>
struct AttentionScratch {
  using E = Engine<T>;
  int64_t head_dim, padded_dim, group, queries, rows;

  AttentionScratch(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim)
      : head_dim(head_dim),
        padded_dim(round_up(head_dim, kLanes)),
        group(num_heads / num_kv_heads),
        queries(larger(1, kQueryRows / group)),
        rows(queries * group) {}

  int64_t query_bytes() const { return rows * divide_up(head_dim, kLineK<E>) * kLineBytes; }
  int64_t panel_bytes() const { return divide_up(head_dim, E::kStepK) * kStepBytes; }
  int64_t key_bytes() const { return kKeyBlock / kPanelColumns * panel_bytes(); }
  int64_t num_floats() const { return rows * (kKeyBlock + padded_dim + 3); }
  size_t bytes() const {
    return static_cast<size_t>(query_bytes() + key_bytes()) + static_cast<size_t>(num_floats()) * sizeof(float);
  }
};

struct AttentionRows {
  float *scores, *sums, *maxima, *totals, *factors;
};

// One row of scores turned into weights; `begin` and `end` bound the keys that the row sees.
AETHER_INLINE void soften_row(float* scores, int64_t begin, int64_t end, float scale, float& maximum, float& total,
                              float& factor) {
  const float hidden = -__builtin_inff();
  if (begin >= end) {
    for (int64_t j = 0; j < kKeyBlock; j += kLanes) store(scores + j, zero());
    factor = 1.0f;
    return;
  }
  for (int64_t j = 0; j < begin; ++j) scores[j] = hidden;
  for (int64_t j = end; j < kKeyBlock; ++j) scores[j] = hidden;
  Vec values[kKeyBlock / kLanes];
  Vec best = set1(hidden);
#pragma GCC unroll 4
  for (int64_t j = 0; j < kKeyBlock / kLanes; ++j) {
    values[j] = load(scores + j * kLanes) * set1(scale);
    best = max(best, values[j]);
  }
  const float block_maximum = reduce_max(best);
  const float new_maximum = block_maximum > maximum ? block_maximum : maximum;
  factor = first_lane(exp(set1(maximum - new_maximum)));
  Vec sum = zero();
#pragma GCC unroll 4
  for (int64_t j = 0; j < kKeyBlock / kLanes; ++j) {
    const Vec weight = exp(values[j] - set1(new_maximum));
    store(scores + j * kLanes, weight);
    sum = sum + weight;
  }
  maximum = new_maximum;
  total = total * factor + reduce_add(sum);
}

// `count` queries, the first of which stands at `position`. A key, of `num_keys`, and its value start `offset_of_key`
// elements into k and v.
template <class T, class OffsetFn>
AETHER_INLINE void attend(const T* q, const T* k, const T* v, T* out, int64_t row_stride, OffsetFn offset_of_key,
                          int64_t num_keys, int64_t position, int64_t count, float scale, int64_t window,
                          const AttentionScratch<T>& layout, void* scratch) {
  using E = Engine<T>;
  const int64_t head_dim = layout.head_dim, group = layout.group, num_rows = count * group;
  char* queries = static_cast<char*>(scratch);
  char* keys = queries + layout.query_bytes();
  AttentionRows rows;
  rows.scores = reinterpret_cast<float*>(keys + layout.key_bytes());
  rows.sums = rows.scores + layout.rows * kKeyBlock;
  rows.maxima = rows.sums + layout.rows * layout.padded_dim;
  rows.totals = rows.maxima + layout.rows;
  rows.factors = rows.totals + layout.rows;

  const auto offset_of = [&](int64_t r) { return r / group * row_stride + r % group * head_dim; };
  pack_tiles<E>([&](int64_t r) { return q + offset_of(r); }, num_rows, 0, head_dim, queries);
  std::memset(rows.sums, 0, static_cast<size_t>(num_rows * layout.padded_dim) * sizeof(float));
  for (int64_t r = 0; r < num_rows; ++r) {
    rows.maxima[r] = -__builtin_inff();
    rows.totals[r] = 0.0f;
  }

  const int64_t end = smaller(position + count, num_keys);
  const int64_t begin = window > 0 ? larger(0, position - window + 1) : 0;
  for (int64_t block = begin / kKeyBlock * kKeyBlock; block < end; block += kKeyBlock) {
    // Keys [low, high) of the block are there to be read; the rest of a panel repeats one of them and is masked.
    const int64_t low = larger(begin - block, 0), high = smaller(end - block, kKeyBlock);
    const T* key_rows[kKeyBlock];
    const T* value_rows[kKeyBlock];
    for (int64_t j = 0; j < kKeyBlock; ++j) {
      const int64_t offset = offset_of_key(block + smaller(larger(j, low), high - 1));
      key_rows[j] = k + offset;
      value_rows[j] = v + offset;
    }
    const char* panels[kKeyBlock / kPanelColumns];
    for (int64_t p = 0; p < kKeyBlock / kPanelColumns; ++p) {
      char* panel = keys + p * layout.panel_bytes();
      if (p * kPanelColumns < high) pack_keys(key_rows + p * kPanelColumns, head_dim, panel);
      panels[p] = panel;
    }
    multiply_tiles<E>(queries, num_rows, head_dim, panels, kKeyBlock / kPanelColumns, 0, true, rows.scores);
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t last = position + r / group - block;
      const int64_t visible_begin = window > 0 ? larger(last - window + 1, low) : low;
      soften_row(rows.scores + r * kKeyBlock, visible_begin, smaller(last + 1, high), scale, rows.maxima[r],
                 rows.totals[r], rows.factors[r]);
    }
    add_weighted_values(rows.scores, kKeyBlock, num_rows, value_rows, low, high, head_dim, rows.factors, rows.sums,
                        layout.padded_dim);
  }

  for (int64_t r = 0; r < num_rows; ++r) {
    const Vec inverse = set1(rows.totals[r] == 0.0f ? 0.0f : 1.0f / rows.totals[r]);  // zero: it sees no key
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      store(out + offset_of(r) + i, load(rows.sums + r * layout.padded_dim + i) * inverse,
            smaller(head_dim - i, kLanes));
    }
  }
}

template <class T>
void paged_attention(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const CacheLayout cache(in[1]);
  const AttentionScratch<T> layout(in[0].shape[1], cache.num_heads, cache.head_dim);
  const int32_t* cu_seqlens_q = data<const int32_t>(in[3]);
  const int32_t* seqlens_k = data<const int32_t>(in[4]);
  const int64_t num_sequences = in[4].shape[0], table_width = in[5].shape[1];
  const int64_t row_stride = in[0].shape[1] * cache.head_dim;
  const float scale = static_cast<float>(attrs[0].f);

  const auto num_runs = [&](int64_t s) { return divide_up(cu_seqlens_q[s + 1] - cu_seqlens_q[s], layout.queries); };
  int64_t num_units = 0;
  for (int64_t s = 0; s < num_sequences; ++s) num_units += num_runs(s) * cache.num_heads;

  int64_t s = 0, first_unit = 0;  // tickets ascend, so the walk over the sequences goes on where it stopped
  for_each_claimed(team, num_units, [&](int64_t unit) {
    while (unit - first_unit >= num_runs(s) * cache.num_heads) first_unit += num_runs(s++) * cache.num_heads;
    // The last run sees the most keys: longest first evens out the end.
    const int64_t run = num_runs(s) - 1 - (unit - first_unit) / cache.num_heads;
    const int64_t head = (unit - first_unit) % cache.num_heads;
    const int64_t num_queries = cu_seqlens_q[s + 1] - cu_seqlens_q[s];
    const int64_t first = run * layout.queries;
    const int64_t offset = (cu_seqlens_q[s] + first) * row_stride + head * layout.group * cache.head_dim;
    const int64_t cache_offset = head * cache.head_stride();
    const int32_t* block_table = data<const int32_t>(in[5]) + s * table_width;
    const auto offset_of_key = [&](int64_t key) {
      return block_table[key / cache.block_size] * cache.block_stride() + key % cache.block_size * cache.head_dim;
    };
    attend(data<const T>(in[0]) + offset, data<const T>(in[1]) + cache_offset, data<const T>(in[2]) + cache_offset,
           data<T>(out[0]) + offset, row_stride, offset_of_key, seqlens_k[s], seqlens_k[s] - num_queries + first,
           smaller(layout.queries, num_queries - first), scale, attrs[1].i, layout, team->scratch);
  });
}

template <class T>
size_t paged_attention_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t) {
  return AttentionScratch<T>(in[0].shape[1], in[1].shape[1], in[1].shape[3]).bytes();
}

}  // namespace aether::cpu::AETHER_ISA
