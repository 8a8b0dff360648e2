// Attention of a run of queries to the keys of one kv head.
//
// The query heads that share the kv head and the queries of the run are rows of one small matrix, so that every key and
// value is read once for all of them. Both products are those of gemm.h, over blocks of kKeyBlock keys at fixed
// multiples of it. A block's sums start afresh and are joined to those of the blocks before, whether one worker goes
// through all or several share them as parts (Flash-Decoding, Dao et al., 2023): a query's result depends neither on
// the other queries nor on the number of workers. Everything but the inputs and the weights of pair dot products is
// float32.
#pragma once

#include "kernels/attention_rows.h"
#include "kernels/attention_tiles.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kQueryRows = 384;
inline constexpr int64_t kFewestQueryRows = 96;
inline constexpr int64_t kColdPanels = 4;
inline constexpr float kLog2E = 1.44269504f;

// How queries of type T and stored elements of type S are computed with.
template <class T, class S>
struct AttentionTypes {
  using Stored = S;
  using Compute = typename Meeting<T, S>::Type;
  using E = Engine<Compute>;
  static constexpr bool kHasFactors = __is_same(S, Code);
  static constexpr bool kIsExpanded = !__is_same(S, Compute);
};

// Sizes of one call, and what of a worker's scratch lies where.
template <class T, class S>
struct AttentionLayout {
  using Types = AttentionTypes<T, S>;
  using E = typename Types::E;
  int64_t head_dim, padded_dim, group, queries, rows;

  AttentionLayout(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim)
      : head_dim(head_dim),
        padded_dim(round_up(head_dim, kLanes)),
        group(num_heads / num_kv_heads),
        queries(larger(1, kQueryRows / group)),
        rows(queries * group) {}

  // Shorter runs, no longer than `most` where that leaves them long enough to share a packed block.
  void limit_queries(int64_t most) {
    queries = smaller(queries, larger(most, larger(1, kFewestQueryRows / group)));
    rows = queries * group;
  }

  int64_t query_row_bytes() const { return divide_up(head_dim, kLineK<E>) * kLineBytes; }
  int64_t query_bytes() const { return rows * query_row_bytes(); }
  static constexpr int64_t weight_bytes() { return kTileRows * kKeyBlock / kLineK<E> * kLineBytes; }
  int64_t key_panel_bytes() const { return divide_up(head_dim, E::kStepK) * kStepBytes; }
  int64_t key_bytes() const { return kKeyBlock / kPanelColumns * key_panel_bytes(); }
  // A line more than needed: panels a multiple of 4 KiB apart would compete for the same sets of a cache.
  static constexpr int64_t value_panel_bytes() { return (kKeyBlock / E::kStepK + 1) * kStepBytes; }
  // Steps of fetching beside a panel of values, where one of keys gets one: it is a block long, and takes as much
  // longer.
  int64_t value_steps() const { return larger(1, kKeyBlock / padded_dim); }
  int64_t value_bytes() const { return padded_dim / kPanelColumns * value_panel_bytes(); }
  int64_t room_bytes() const { return Types::kIsExpanded ? 16 * padded_dim * 4 : 0; }
  int64_t pointer_bytes() const { return ((kKeyBlock + padded_dim) / kPanelColumns + rows) * 8; }
  int64_t num_floats() const { return 2 * kKeyBlock + kTileRows * (kKeyBlock + padded_dim) + rows * padded_dim; }
  size_t bytes() const {
    const int64_t panels =
        query_bytes() + weight_bytes() + key_bytes() + value_bytes() + room_bytes() + pointer_bytes();
    const int64_t floats = num_floats() * static_cast<int64_t>(sizeof(float));
    const int64_t total = panels + floats + (kTileRows + rows) * static_cast<int64_t>(sizeof(Softened));
    return static_cast<size_t>(round_up(total, kLineBytes));
  }
};

template <class T, class S>
struct AttentionScratch {
  using Compute = typename AttentionTypes<T, S>::Compute;
  char *queries, *weights, *keys, *values;
  const char **key_panels, **value_panels;
  int64_t* row_offsets;  // row r is head r % group of query r / group
  Compute* room;
  float *key_factors, *value_factors, *scores, *part_sums, *sums;
  Softened *part, *all;  // of a tile's rows in one part, and of the run's in all parts so far

  // Queries are `row_stride` elements apart, and their heads head_dim.
  AttentionScratch(const AttentionLayout<T, S>& layout, int64_t row_stride, void* scratch) {
    queries = static_cast<char*>(scratch);
    weights = queries + layout.query_bytes();
    keys = weights + layout.weight_bytes();
    values = keys + layout.key_bytes();
    room = reinterpret_cast<Compute*>(values + layout.value_bytes());
    key_factors = reinterpret_cast<float*>(reinterpret_cast<char*>(room) + layout.room_bytes());
    value_factors = key_factors + kKeyBlock;
    scores = value_factors + kKeyBlock;
    part_sums = scores + kTileRows * kKeyBlock;
    sums = part_sums + kTileRows * layout.padded_dim;
    part = reinterpret_cast<Softened*>(sums + layout.rows * layout.padded_dim);
    all = part + kTileRows;
    key_panels = reinterpret_cast<const char**>(all + layout.rows);
    value_panels = key_panels + kKeyBlock / kPanelColumns;
    for (int64_t p = 0; p < kKeyBlock / kPanelColumns; ++p) key_panels[p] = keys + p * layout.key_panel_bytes();
    for (int64_t p = 0; p < layout.padded_dim / kPanelColumns; ++p) {
      value_panels[p] = values + p * layout.value_panel_bytes();
    }
    row_offsets = reinterpret_cast<int64_t*>(value_panels + layout.padded_dim / kPanelColumns);
    for (int64_t r = 0; r < layout.rows; r += layout.group) {
      for (int64_t i = 0; i < layout.group; ++i) {
        row_offsets[r + i] = r / layout.group * row_stride + i * layout.head_dim;
      }
    }
  }
};

// Keys and values as rows of head_dim elements, which the rows' numbers say where to find; factors go by row as well.
template <class S>
struct KeysAndValues {
  const S *keys, *values;
  const float *key_factors, *value_factors;
  int32_t dtype = AM_INT8;  // of codes
};

// The queries of a run: `count` of them, the first at `position`; of `num_keys` keys each sees those up to its own
// position, and with a window only the last so many.
struct QueryRun {
  int64_t count, position, num_keys, window;

  int64_t begin() const { return window > 0 ? larger(0, position - window + 1) : 0; }
  int64_t end() const { return smaller(position + count, num_keys); }
  int64_t first_part() const { return begin() / kKeyBlock; }
  int64_t end_part() const { return divide_up(larger(end(), 0), kKeyBlock); }
};

// The rows of a block's keys: [low, high) are there to be read, the others of its panels repeat one of them and are
// masked by their weights.
struct BlockRows {
  int64_t low, high, num_panels;
  int64_t rows[kKeyBlock];

  template <class FindFn>
  void find(const QueryRun& run, int64_t block, int64_t end, FindFn find_rows) {
    low = larger(run.begin() - block, 0), high = smaller(end - block, kKeyBlock);
    num_panels = high > low ? divide_up(high, kPanelColumns) : 0;
    if (num_panels == 0) return;
    find_rows(block + low, high - low, rows + low);
    for (int64_t j = 0; j < low; ++j) rows[j] = rows[low];
    for (int64_t j = high; j < num_panels * kPanelColumns; ++j) rows[j] = rows[high - 1];
  }
};

// Brings the rows of a block from `first` on into the caches while those before are computed with, a little at every
// step: memory answers only so many requests at a time, and idles between bursts.
template <class S>
class Prefetcher {
 public:
  Prefetcher(const KeysAndValues<S>& stored, const BlockRows& block, int64_t first, int64_t head_dim, int64_t num_steps)
      : stored_(stored),
        block_(block),
        first_(first),
        head_dim_(head_dim),
        count_(block.num_panels > 0 ? larger(block.high - first, 0) : 0),
        rows_of_step_(divide_up(2 * count_, num_steps)) {}

  AETHER_INLINE void step(int64_t num_steps = 1) {
    const int64_t end = smaller(done_ + rows_of_step_ * num_steps, 2 * count_);
    for (; done_ < end; ++done_) {
      const bool is_key = done_ < count_;
      const int64_t row = block_.rows[first_ + (is_key ? done_ : done_ - count_)] * head_dim_;
      const char* line = reinterpret_cast<const char*>((is_key ? stored_.keys : stored_.values) + row);
      for (int64_t byte = 0; byte < head_dim_ * static_cast<int64_t>(sizeof(S)); byte += kLineBytes) {
        fetch_line(line + byte);
      }
    }
  }

 private:
  const KeysAndValues<S>& stored_;
  const BlockRows& block_;
  const int64_t first_, head_dim_, count_, rows_of_step_;
  int64_t done_ = 0;
};

// Keys and values of a block's panels [begin, end) into panels. Compiled once, and called some times a block.
template <class T, class S>
__attribute__((noinline)) void pack_panels(const BlockRows& block, int64_t begin, int64_t end,
                                           const KeysAndValues<S>& stored, const AttentionLayout<T, S>& layout,
                                           const AttentionScratch<T, S>& at, Prefetcher<S>& prefetcher) {
  using E = typename AttentionTypes<T, S>::E;
  const typename AttentionTypes<T, S>::Compute* rows[16];
  for (int64_t p = begin; p < end; ++p) {
    prefetcher.step();
    const int64_t* numbers = block.rows + p * kPanelColumns;
    meet(stored.keys, stored.dtype, numbers, layout.head_dim, at.room, layout.padded_dim, rows);
    pack_keys(rows, layout.head_dim, at.keys + p * layout.key_panel_bytes());
    prefetcher.step();
    meet(stored.values, stored.dtype, numbers, layout.head_dim, at.room, layout.padded_dim, rows);
    pack_values(rows, layout.head_dim, at.values + p * kPanelColumns / E::kStepK * kStepBytes,
                layout.value_panel_bytes());
  }
}

// Rows [first_row, first_row + num_rows) of a run, a tile of gemm.h, against a packed block whose first key is
// `begin`: scores, weights, and the sums of values, which are those of a part: all stay in the caches next to the core.
// Panels of which the last row sees no key are left out.
template <class T, class S>
__attribute__((noinline)) void attend_tile(const QueryRun& run, int64_t begin, const BlockRows& block,
                                           int64_t first_row, int64_t num_rows, const AttentionLayout<T, S>& layout,
                                           const AttentionScratch<T, S>& at, Prefetcher<S>& prefetcher) {
  using Types = AttentionTypes<T, S>;
  using E = typename Types::E;
  const int64_t first_query = first_row / layout.group;
  const int64_t end = run.position + (first_row + num_rows - 1) / layout.group + 1 - begin;
  const int64_t num_panels = smaller(larger(1, divide_up(end, kPanelColumns)), block.num_panels);
  multiply_near<E>(at.queries + first_row * layout.query_row_bytes(), num_rows, layout.head_dim, at.key_panels,
                   num_panels, at.scores, [&](int64_t n) { prefetcher.step(n); });
  int64_t last = run.position + first_query - begin, left = (first_query + 1) * layout.group - first_row;
  const auto next_seen = [&] {
    const int64_t first = run.window > 0 ? larger(last - run.window + 1, block.low) : block.low;
    const SeenKeys seen = {first, smaller(last + 1, block.high)};
    if (--left == 0) ++last, left = layout.group;
    return seen;
  };
  soften_tile<E>(at.scores, num_rows, num_panels, next_seen, at.key_factors,
                 Types::kHasFactors ? at.value_factors : nullptr, at.part, at.weights);
  multiply_near<E>(at.weights, num_rows, num_panels * kPanelColumns, at.value_panels, layout.padded_dim / kPanelColumns,
                   at.part_sums, [&](int64_t n) { prefetcher.step(n * layout.value_steps()); });
}

// The packed queries against the keys of parts [part_begin, part_end). `find_rows(key, count, rows)` tells the rows of
// neighbouring keys. `find_next(block)` finds what this worker is likely to read after the last of them, or leaves the
// block empty. `finish(part, begin, end)` takes the sums and Softened of a tile's rows out of scratch.
template <class T, class S, class FindFn, class NextFn, class FinishFn>
AETHER_INLINE void attend_parts(const QueryRun& run, int64_t part_begin, int64_t part_end,
                                const KeysAndValues<S>& stored, FindFn find_rows, NextFn find_next, float scale,
                                const AttentionLayout<T, S>& layout, const AttentionScratch<T, S>& at,
                                FinishFn finish) {
  const int64_t num_rows = run.count * layout.group;
  const Tiles cut(num_rows);
  const int64_t begin = larger(run.begin(), part_begin * kKeyBlock), end = smaller(run.end(), part_end * kKeyBlock);
  for (int64_t j = 0; j < kKeyBlock; ++j) at.key_factors[j] = scale * kLog2E;

  BlockRows blocks[2];
  const int64_t first = begin / kKeyBlock;
  blocks[first % 2].find(run, first * kKeyBlock, end, find_rows);
  for (int64_t b = first; b * kKeyBlock < end; ++b) {
    const BlockRows& block = blocks[b % 2];
    BlockRows& next = blocks[(b + 1) % 2];
    next.find(run, (b + 1) * kKeyBlock, end, find_rows);
    if (next.num_panels == 0) find_next(next);
    if constexpr (AttentionTypes<T, S>::kHasFactors) {
      for (int64_t j = 0; j < block.num_panels * kPanelColumns; ++j) {
        at.key_factors[j] = stored.key_factors[block.rows[j]] * scale * kLog2E;
        at.value_factors[j] = stored.value_factors[block.rows[j]];
      }
    }
    // Of a first block nothing is there yet: its beginning is what the rest of it is fetched beside.
    const int64_t cold = b == first ? smaller(kColdPanels, block.num_panels) : 0;
    Prefetcher<S> rest(stored, block, cold * kPanelColumns, layout.head_dim, 2 * kColdPanels);
    pack_panels(block, 0, cold, stored, layout, at, rest);
    const int64_t steps_of_tile = block.num_panels + layout.padded_dim / kPanelColumns * layout.value_steps();
    Prefetcher<S> prefetcher(stored, next, 0, layout.head_dim,
                             2 * (block.num_panels - cold) + cut.count * steps_of_tile);
    pack_panels(block, cold, block.num_panels, stored, layout, at, prefetcher);
    for (int64_t tile = 0; tile < cut.count; ++tile) {
      attend_tile(run, b * kKeyBlock, block, cut.begin(tile), cut.size(tile), layout, at, prefetcher);
      finish(b, cut.begin(tile), cut.begin(tile + 1));
    }
  }
}

// Queries as tiles.
template <class T, class S>
AETHER_INLINE void pack_queries(const T* q, const QueryRun& run, const AttentionLayout<T, S>& layout,
                                const AttentionScratch<T, S>& at) {
  pack_tiles<typename AttentionTypes<T, S>::E>([&](int64_t r) { return q + at.row_offsets[r]; },
                                               run.count * layout.group, 0, layout.head_dim, at.queries);
}

// All parts of a run, from queries to outputs.
template <class T, class S, class FindFn, class NextFn>
AETHER_INLINE void attend(const T* q, T* out, const QueryRun& run, const KeysAndValues<S>& stored, FindFn find_rows,
                          NextFn find_next, float scale, const AttentionLayout<T, S>& layout,
                          const AttentionScratch<T, S>& at) {
  const int64_t num_rows = run.count * layout.group;
  pack_queries(q, run, layout, at);
  for (int64_t r = 0; r < num_rows; ++r) at.all[r] = {kHidden, 0.0f};
  attend_parts(run, run.first_part(), run.end_part(), stored, find_rows, find_next, scale, layout, at,
               [&](int64_t, int64_t row_begin, int64_t row_end) {
                 for (int64_t r = row_begin; r < row_end; ++r) {
                   const int64_t i = r - row_begin, size = layout.padded_dim;
                   join_part(at.all[r], at.sums + r * size, at.part[i], at.part_sums + i * size, size);
                 }
               });
  for (int64_t r = 0; r < num_rows; ++r) {
    write_row(at.all[r], at.sums + r * layout.padded_dim, layout.head_dim, out + at.row_offsets[r]);
  }
}

}  // namespace aether::cpu::AETHER_ISA
