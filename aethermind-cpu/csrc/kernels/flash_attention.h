// FlashAttention of a block of queries over the keys of one kv head (Dao, 2023).
//
// The query heads that share the kv head (GQA) and the queries of the block are the rows of one small matrix, so that
// every key and value is read once for all of them. Both products are those of gemm.h, over key blocks of kKeyBlock
// keys at fixed multiples of it. Each key block has its own softmax state and sums, which are merged with those of
// the blocks before in ascending order, whether one worker computes all key blocks or several split them
// (Flash-Decoding, Dao et al., 2023): a query's result depends neither on the other queries nor on the number of
// workers. All arithmetic is float32, except the inputs of bfloat16 dot products.
#pragma once

#include "kernels/attention_pack.h"
#include "kernels/online_softmax.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kMaxQueryRows = 384;      // rows (queries × heads) of a query block
inline constexpr int64_t kMinQueryRows = 96;       // fewer rows do not amortise packing a key block
inline constexpr int64_t kUnprefetchedPanels = 4;  // of a worker's first key block

// Types for queries of type T and cached elements of type S.
template <class T, class S>
struct AttentionTypes {
  using Stored = S;
  using Compute = typename ComputeType<T, S>::Type;
  using Micro = Microkernel<Compute>;
  static constexpr bool kHasScales = __is_same(S, Code);
  static constexpr bool kIsExpanded = !__is_same(S, Compute);
};

// Sizes of one call, and the layout of a worker's scratch. Values have `value_dim` elements; padded_dim is that of
// values.
template <class T, class S>
struct AttentionLayout {
  using Types = AttentionTypes<T, S>;
  using Micro = typename Types::Micro;
  int64_t head_dim, value_dim, padded_dim, group, queries, rows;

  AttentionLayout(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t value_dim)
      : head_dim(head_dim),
        value_dim(value_dim),
        padded_dim(round_up(value_dim, kLanes)),
        group(num_heads / num_kv_heads),
        queries(larger(1, kMaxQueryRows / group)),
        rows(queries * group) {}

  // Limits query blocks to `max_queries` queries, but not below kMinQueryRows.
  void limit_query_block(int64_t max_queries) {
    queries = smaller(queries, larger(max_queries, larger(1, kMinQueryRows / group)));
    rows = queries * group;
  }

  int64_t query_row_bytes() const { return ceil_div(head_dim, kLineK<Micro>) * kLineBytes; }
  int64_t query_bytes() const { return rows * query_row_bytes(); }
  static constexpr int64_t weight_bytes() { return kTileRows * kKeyBlock / kLineK<Micro> * kLineBytes; }
  int64_t key_panel_bytes() const { return ceil_div(head_dim, Micro::kStepK) * kStepBytes; }
  int64_t key_bytes() const { return kKeyBlock / kPanelColumns * key_panel_bytes(); }
  // One line of padding: panels a multiple of 4 KiB apart would map to the same sets of a cache.
  static constexpr int64_t value_panel_bytes() { return (kKeyBlock / Micro::kStepK + 1) * kStepBytes; }
  // Prefetch steps per panel of values, relative to one for a panel of keys: a value panel has kKeyBlock rows, a key
  // panel as many as a value has elements.
  int64_t value_steps() const { return larger(1, kKeyBlock / padded_dim); }
  int64_t value_bytes() const { return padded_dim / kPanelColumns * value_panel_bytes(); }
  int64_t staging_stride() const { return round_up(larger(head_dim, value_dim), kLanes); }
  int64_t staging_bytes() const { return Types::kIsExpanded ? 16 * staging_stride() * 4 : 0; }
  int64_t pointer_bytes() const { return ((kKeyBlock + padded_dim) / kPanelColumns + rows) * 8; }
  int64_t num_floats() const { return 2 * kKeyBlock + kTileRows * (kKeyBlock + padded_dim) + rows * padded_dim; }
  size_t bytes() const {
    const int64_t panels =
        query_bytes() + weight_bytes() + key_bytes() + value_bytes() + staging_bytes() + pointer_bytes();
    const int64_t floats = num_floats() * static_cast<int64_t>(sizeof(float));
    const int64_t total = panels + floats + (kTileRows + rows) * static_cast<int64_t>(sizeof(OnlineSoftmaxState));
    return static_cast<size_t>(round_up(total, kLineBytes));
  }
};

template <class T, class S>
struct AttentionScratch {
  using Compute = typename AttentionTypes<T, S>::Compute;
  char *queries, *weights, *keys, *values;
  const char **key_panels, **value_panels;
  int64_t* row_heads;  // row r is head r % group of query r / group: its number among the heads of all queries
  Compute* staging;    // sixteen rows converted to the compute type
  float *key_scales, *value_scales, *scores, *partial_sums, *sums;
  OnlineSoftmaxState *partial, *all;  // of a tile's rows in one key block; of all rows in all key blocks so far

  // A query has `num_heads` heads, one after the other, and so has its output.
  AttentionScratch(const AttentionLayout<T, S>& layout, int64_t num_heads, void* scratch) {
    queries = static_cast<char*>(scratch);
    weights = queries + layout.query_bytes();
    keys = weights + layout.weight_bytes();
    values = keys + layout.key_bytes();
    staging = reinterpret_cast<Compute*>(values + layout.value_bytes());
    key_scales = reinterpret_cast<float*>(reinterpret_cast<char*>(staging) + layout.staging_bytes());
    value_scales = key_scales + kKeyBlock;
    scores = value_scales + kKeyBlock;
    partial_sums = scores + kTileRows * kKeyBlock;
    sums = partial_sums + kTileRows * layout.padded_dim;
    partial = reinterpret_cast<OnlineSoftmaxState*>(sums + layout.rows * layout.padded_dim);
    all = partial + kTileRows;
    key_panels = reinterpret_cast<const char**>(all + layout.rows);
    value_panels = key_panels + kKeyBlock / kPanelColumns;
    for (int64_t p = 0; p < kKeyBlock / kPanelColumns; ++p) key_panels[p] = keys + p * layout.key_panel_bytes();
    for (int64_t p = 0; p < layout.padded_dim / kPanelColumns; ++p) {
      value_panels[p] = values + p * layout.value_panel_bytes();
    }
    row_heads = reinterpret_cast<int64_t*>(value_panels + layout.padded_dim / kPanelColumns);
    for (int64_t r = 0; r < layout.rows; r += layout.group) {
      for (int64_t i = 0; i < layout.group; ++i) row_heads[r + i] = r / layout.group * num_heads + i;
    }
  }
};

// Cached keys and values as rows of head_dim elements, and with a quantised cache one scale per row. Values are the
// first value_dim elements of their rows.
template <class S>
struct KeysAndValues {
  const S *keys, *values;
  const float *key_scales, *value_scales;
  int32_t dtype = AM_INT8;  // of a quantised cache
};

// Modifications of the scores of query heads besides their scale: a soft cap, ALiBi slopes and attention sinks.
struct ScoreModifiers {
  float softcap = 0.0f;           // scores are limited to ±softcap, smoothly; 0 for no limit
  const float* slopes = nullptr;  // of each head; ALiBi (Press et al., 2022): slope · (key - query) is added
  const float* sinks = nullptr;   // of each head; scores that only add to the softmax's denominator (Xiao et al., 2023)

  bool keep_scores() const { return softcap == 0.0f && slopes == nullptr; }
  const float* sink(int64_t head) const { return sinks ? sinks + head : nullptr; }
  // The modifiers of the heads from `first` on.
  ScoreModifiers from_head(int64_t first) const {
    return {softcap, slopes ? slopes + first : nullptr, sinks ? sinks + first : nullptr};
  }
};

// A block of `count` queries, the first at `position` of a sequence with `num_keys` keys. A query attends to the
// keys up to its own position; with a window, to the last `window` of them.
struct QueryBlock {
  int64_t count, position, num_keys, window;

  int64_t begin() const { return window > 0 ? larger(0, position - window + 1) : 0; }
  int64_t end() const { return smaller(position + count, num_keys); }
  int64_t first_key_block() const { return begin() / kKeyBlock; }
  int64_t end_key_block() const { return ceil_div(larger(end(), 0), kKeyBlock); }
};

// Row numbers of a key block's keys. Keys [low, high) exist; the rest of the block's panels repeats an existing row and
// is masked.
struct KeyBlockRows {
  int64_t low, high, num_panels;
  int64_t rows[kKeyBlock];

  template <class FindFn>
  void find(const QueryBlock& query_block, int64_t block, int64_t end, FindFn find_rows) {
    low = larger(query_block.begin() - block, 0), high = smaller(end - block, kKeyBlock);
    num_panels = high > low ? ceil_div(high, kPanelColumns) : 0;
    if (num_panels == 0) return;
    find_rows(block + low, high - low, rows + low);
    for (int64_t j = 0; j < low; ++j) rows[j] = rows[low];
    for (int64_t j = high; j < num_panels * kPanelColumns; ++j) rows[j] = rows[high - 1];
  }
};

// Prefetches the keys and values of a key block from row `first` on, interleaved with the arithmetic of the block
// before: a few rows at every step, since memory serves only so many requests at a time.
template <class S>
class Prefetcher {
 public:
  Prefetcher(const KeysAndValues<S>& stored, const KeyBlockRows& block, int64_t first, int64_t head_dim,
             int64_t num_steps)
      : stored_(stored),
        block_(block),
        first_(first),
        head_dim_(head_dim),
        count_(block.num_panels > 0 ? larger(block.high - first, 0) : 0),
        rows_of_step_(ceil_div(2 * count_, num_steps)) {}

  AETHER_INLINE void step(int64_t num_steps = 1) {
    const int64_t end = smaller(done_ + rows_of_step_ * num_steps, 2 * count_);
    for (; done_ < end; ++done_) {
      const bool is_key = done_ < count_;
      const int64_t row = block_.rows[first_ + (is_key ? done_ : done_ - count_)] * head_dim_;
      const char* line = reinterpret_cast<const char*>((is_key ? stored_.keys : stored_.values) + row);
      for (int64_t byte = 0; byte < head_dim_ * static_cast<int64_t>(sizeof(S)); byte += kLineBytes) {
        prefetch_line(line + byte);
      }
    }
  }

 private:
  const KeysAndValues<S>& stored_;
  const KeyBlockRows& block_;
  const int64_t first_, head_dim_, count_, rows_of_step_;
  int64_t done_ = 0;
};

// Packs panels [begin, end) of a key block's keys and values. Not inlined: it is called several times per block.
template <class T, class S>
__attribute__((noinline)) void pack_panels(const KeyBlockRows& block, int64_t begin, int64_t end,
                                           const KeysAndValues<S>& stored, const AttentionLayout<T, S>& layout,
                                           const AttentionScratch<T, S>& scratch, Prefetcher<S>& prefetcher) {
  using Micro = typename AttentionTypes<T, S>::Micro;
  const typename AttentionTypes<T, S>::Compute* rows[16];
  for (int64_t p = begin; p < end; ++p) {
    prefetcher.step();
    const int64_t* numbers = block.rows + p * kPanelColumns;
    load_as(stored.keys, stored.dtype, numbers, layout.head_dim, scratch.staging, layout.staging_stride(), rows);
    pack_keys(rows, layout.head_dim, scratch.keys + p * layout.key_panel_bytes());
    prefetcher.step();
    load_as(stored.values, stored.dtype, numbers, layout.head_dim, scratch.staging, layout.staging_stride(), rows);
    pack_values(rows, layout.value_dim, scratch.values + p * kPanelColumns / Micro::kStepK * kStepBytes,
                layout.value_panel_bytes());
  }
}

// A tile of query rows [first_row, first_row + num_rows) against a packed key block whose first key is `begin`: scores,
// softmax, and the weighted sums of values, all within the core's own caches. Panels that the last row may not attend
// to are skipped.
template <class T, class S>
__attribute__((noinline)) void attend_tile(const QueryBlock& query_block, int64_t begin, const KeyBlockRows& block,
                                           int64_t first_row, int64_t num_rows, const ScoreModifiers& modifiers,
                                           const AttentionLayout<T, S>& layout, const AttentionScratch<T, S>& scratch,
                                           Prefetcher<S>& prefetcher) {
  using Types = AttentionTypes<T, S>;
  using Micro = typename Types::Micro;
  const int64_t first_query = first_row / layout.group;
  const int64_t end = query_block.position + (first_row + num_rows - 1) / layout.group + 1 - begin;
  const int64_t num_panels = smaller(larger(1, ceil_div(end, kPanelColumns)), block.num_panels);
  multiply_cached<Micro>(scratch.queries + first_row * layout.query_row_bytes(), num_rows, layout.head_dim,
                         scratch.key_panels, num_panels, scratch.scores, [&](int64_t n) { prefetcher.step(n); });
  int64_t last = query_block.position + first_query - begin, left = (first_query + 1) * layout.group - first_row;
  const auto next_range = [&] {
    const int64_t first = query_block.window > 0 ? larger(last - query_block.window + 1, block.low) : block.low;
    const KeyRange range = {first, smaller(last + 1, block.high)};
    if (--left == 0) ++last, left = layout.group;
    return range;
  };
  const auto key_scales = [&](int64_t i, float* scores) -> const float* {
    if (modifiers.keep_scores()) return scratch.key_scales;
    const int64_t r = first_row + i, query = query_block.position + r / layout.group - begin;
    const float slope = modifiers.slopes ? modifiers.slopes[r % layout.group] : 0.0f;
    transform_scores(scores, num_panels * kPanelColumns, scratch.key_scales, modifiers.softcap * kLog2E, slope * kLog2E,
                     query);
    return kUnitScales.values;
  };
  softmax_tile<Micro>(scratch.scores, num_rows, num_panels, next_range, key_scales,
                      Types::kHasScales ? scratch.value_scales : nullptr, scratch.partial, scratch.weights);
  multiply_cached<Micro>(scratch.weights, num_rows, num_panels * kPanelColumns, scratch.value_panels,
                         layout.padded_dim / kPanelColumns, scratch.partial_sums,
                         [&](int64_t n) { prefetcher.step(n * layout.value_steps()); });
}

// The packed queries against key blocks [key_block_begin, key_block_end). `find_rows(key, count, rows)` returns the row
// numbers of adjacent keys. `find_next_block(block)` returns the key block that this worker is likely to read next, to
// be prefetched, or leaves it empty. `finish(key_block, begin, end)` consumes the partial sums and states of rows
// [begin, end).
template <class T, class S, class FindFn, class NextFn, class FinishFn>
AETHER_INLINE void attend_key_blocks(const QueryBlock& query_block, int64_t key_block_begin, int64_t key_block_end,
                                     const KeysAndValues<S>& stored, FindFn find_rows, NextFn find_next_block,
                                     float scale, const ScoreModifiers& modifiers, const AttentionLayout<T, S>& layout,
                                     const AttentionScratch<T, S>& scratch, FinishFn finish) {
  const int64_t num_rows = query_block.count * layout.group;
  const TileSplit split(num_rows);
  const int64_t begin = larger(query_block.begin(), key_block_begin * kKeyBlock),
                end = smaller(query_block.end(), key_block_end * kKeyBlock);
  for (int64_t j = 0; j < kKeyBlock; ++j) scratch.key_scales[j] = scale * kLog2E;

  KeyBlockRows blocks[2];
  const int64_t first = begin / kKeyBlock;
  blocks[first % 2].find(query_block, first * kKeyBlock, end, find_rows);
  for (int64_t b = first; b * kKeyBlock < end; ++b) {
    const KeyBlockRows& block = blocks[b % 2];
    KeyBlockRows& next = blocks[(b + 1) % 2];
    next.find(query_block, (b + 1) * kKeyBlock, end, find_rows);
    if (next.num_panels == 0) find_next_block(next);
    if constexpr (AttentionTypes<T, S>::kHasScales) {
      for (int64_t j = 0; j < block.num_panels * kPanelColumns; ++j) {
        scratch.key_scales[j] = stored.key_scales[block.rows[j]] * scale * kLog2E;
        scratch.value_scales[j] = stored.value_scales[block.rows[j]];
      }
    }
    // Nothing of a worker's first block has been prefetched: packing its first panels prefetches the others.
    const int64_t num_cold = b == first ? smaller(kUnprefetchedPanels, block.num_panels) : 0;
    Prefetcher<S> cold_prefetcher(stored, block, num_cold * kPanelColumns, layout.head_dim, 2 * kUnprefetchedPanels);
    pack_panels(block, 0, num_cold, stored, layout, scratch, cold_prefetcher);
    const int64_t steps_of_tile = block.num_panels + layout.padded_dim / kPanelColumns * layout.value_steps();
    Prefetcher<S> prefetcher(stored, next, 0, layout.head_dim,
                             2 * (block.num_panels - num_cold) + split.count * steps_of_tile);
    pack_panels(block, num_cold, block.num_panels, stored, layout, scratch, prefetcher);
    for (int64_t tile = 0; tile < split.count; ++tile) {
      attend_tile(query_block, b * kKeyBlock, block, split.begin(tile), split.size(tile), modifiers, layout, scratch,
                  prefetcher);
      finish(b, split.begin(tile), split.begin(tile + 1));
    }
  }
}

// Packs the queries into tiles.
template <class T, class S>
AETHER_INLINE void pack_queries(const T* q, const QueryBlock& query_block, const AttentionLayout<T, S>& layout,
                                const AttentionScratch<T, S>& scratch) {
  pack_tiles<typename AttentionTypes<T, S>::Micro>(
      [&](int64_t r) { return q + scratch.row_heads[r] * layout.head_dim; }, query_block.count * layout.group, 0,
      layout.head_dim, scratch.queries);
}

// Attention of a query block over all of its keys.
template <class T, class S, class FindFn, class NextFn>
AETHER_INLINE void attend(const T* q, T* out, const QueryBlock& query_block, const KeysAndValues<S>& stored,
                          FindFn find_rows, NextFn find_next_block, float scale, const ScoreModifiers& modifiers,
                          const AttentionLayout<T, S>& layout, const AttentionScratch<T, S>& scratch) {
  const int64_t num_rows = query_block.count * layout.group;
  pack_queries(q, query_block, layout, scratch);
  for (int64_t r = 0; r < num_rows; ++r) scratch.all[r] = {kMasked, 0.0f};
  attend_key_blocks(query_block, query_block.first_key_block(), query_block.end_key_block(), stored, find_rows,
                    find_next_block, scale, modifiers, layout, scratch,
                    [&](int64_t, int64_t row_begin, int64_t row_end) {
                      for (int64_t r = row_begin; r < row_end; ++r) {
                        const int64_t i = r - row_begin, size = layout.padded_dim;
                        merge_partials(scratch.all[r], scratch.sums + r * size, scratch.partial[i],
                                       scratch.partial_sums + i * size, size);
                      }
                    });
  for (int64_t r = 0; r < num_rows; ++r) {
    write_output(scratch.all[r], scratch.sums + r * layout.padded_dim, layout.value_dim,
                 modifiers.sink(r % layout.group), out + scratch.row_heads[r] * layout.value_dim);
  }
}

}  // namespace aether::cpu::AETHER_ISA
