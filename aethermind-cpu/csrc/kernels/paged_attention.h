// Causal attention over the paged KV cache.
//
// A work item is a sequence, one of its kv heads and a block of its queries. Where that would leave workers idle, a
// sequence's context is split into chunks of several key blocks (split-KV): their partial sums go to scratch that the
// whole team reads, and are merged in order after a barrier.
#pragma once

#include "kernels/flash_attention.h"
#include "kernels/kv_cache_write.h"

namespace aether::cpu::AETHER_ISA {

// Rows of partial sums in one worker's scratch. A sequence that would need more is not split.
inline constexpr int64_t kMaxPartialRows = 4096;
inline constexpr int64_t kItemsPerWorker = 4;

// Key blocks of a chunk, if that leaves each worker kMinItemsPerWorker items. The first block of a chunk is not
// prefetched.
inline constexpr int64_t kBlocksPerItem = 4;
inline constexpr int64_t kMinItemsPerWorker = 2;

// Partial sums and states of rows, one row per key block, in the scratch of all workers.
struct PartialRows {
  const am_team* team;
  size_t offset_bytes;
  int64_t padded_dim;

  static int64_t capacity(int32_t num_workers) { return num_workers > 1 ? kMaxPartialRows * num_workers : 0; }
  static size_t row_bytes(int64_t padded_dim) { return static_cast<size_t>(padded_dim) * sizeof(float) + kLineBytes; }

  float* sums(int64_t row) const {
    char* scratch = static_cast<char*>(team->scratch_of(team, static_cast<int32_t>(row / kMaxPartialRows)));
    return reinterpret_cast<float*>(scratch + offset_bytes +
                                    static_cast<size_t>(row % kMaxPartialRows) * row_bytes(padded_dim));
  }
  OnlineSoftmaxState* state(float* sums) const { return reinterpret_cast<OnlineSoftmaxState*>(sums + padded_dim); }
};

// How one sequence's attention is split into work items.
struct SequenceSplit {
  QueryBlock last_query_block;
  // Of one kv head: query blocks, key blocks, key blocks per chunk, work items, first partial row.
  int64_t num_query_blocks, num_key_blocks, chunk, num_items, first_row;

  bool is_split() const { return chunk < num_key_blocks; }
};

// The ragged batch of a call, whose inputs `tables` are cu_seqlens_q, seqlens_k and block_tables.
template <class T, class S>
struct PagedBatch {
  AttentionLayout<T, S> layout;
  const int32_t *cu_seqlens_q, *seqlens_k, *block_tables;
  int64_t num_sequences, table_width, num_heads, window, num_workers;
  int64_t num_key_blocks = 0;

  PagedBatch(const AttentionLayout<T, S>& sizes, int64_t num_kv_heads, const am_tensor* tables, int64_t window,
             const am_team* team)
      : layout(sizes),
        cu_seqlens_q(data<const int32_t>(tables[0])),
        seqlens_k(data<const int32_t>(tables[1])),
        block_tables(data<const int32_t>(tables[2])),
        num_sequences(tables[1].shape[0]),
        table_width(tables[2].shape[1]),
        num_heads(num_kv_heads),
        window(window),
        num_workers(team->num_workers) {
    layout.limit_query_block(num_heads * cu_seqlens_q[num_sequences] / (kItemsPerWorker * num_workers));
    for (int64_t s = 0; s < num_sequences; ++s) {
      const SequenceSplit whole = split(s, 0);
      num_key_blocks += whole.num_query_blocks * whole.num_key_blocks * num_heads;
    }
  }

  int64_t num_queries(int64_t s) const { return cu_seqlens_q[s + 1] - cu_seqlens_q[s]; }

  QueryBlock query_block(int64_t s, int64_t index) const {
    const int64_t first = index * layout.queries, count = smaller(layout.queries, num_queries(s) - first);
    return {count, seqlens_k[s] - num_queries(s) + first, seqlens_k[s], window};
  }

  // Sequence s, after `first_row` partial rows of the sequences before. A context is split when it would be a large
  // share of a worker's work.
  SequenceSplit split(int64_t s, int64_t first_row) const {
    SequenceSplit result = {{}, ceil_div(num_queries(s), layout.queries), 0, 0, 0, first_row};
    if (result.num_query_blocks == 0) return result;
    result.last_query_block = query_block(s, result.num_query_blocks - 1);
    result.num_key_blocks = result.last_query_block.end_key_block() - result.last_query_block.first_key_block();
    result.chunk = result.num_key_blocks;
    result.num_items = result.num_query_blocks;
    const int64_t preferred = smaller(kBlocksPerItem, num_key_blocks / (kMinItemsPerWorker * num_workers));
    const int64_t fair = larger(1, larger(preferred, num_key_blocks / (kItemsPerWorker * num_workers)));
    const int64_t num_rows = num_heads * result.num_key_blocks * result.last_query_block.count * layout.group;
    const bool fits = first_row + num_rows <= PartialRows::capacity(static_cast<int32_t>(num_workers));
    if (result.num_query_blocks == 1 && result.num_key_blocks > fair && fits) {
      result.chunk = fair;
      result.num_items = ceil_div(result.num_key_blocks, fair);
    }
    return result;
  }
  int64_t end_row(const SequenceSplit& split) const {
    return split.first_row +
           (split.is_split() ? num_heads * split.num_key_blocks * split.last_query_block.count * layout.group : 0);
  }
};

// Index of the partial row of row r in a key block.
template <class T, class S>
AETHER_INLINE int64_t partial_row(const PagedBatch<T, S>& batch, const SequenceSplit& split, int64_t head,
                                  int64_t key_block, int64_t r) {
  const int64_t num_rows = split.last_query_block.count * batch.layout.group;
  return split.first_row +
         (head * split.num_key_blocks + key_block - split.last_query_block.first_key_block()) * num_rows + r;
}

// Merges the partial rows of all split sequences; the workers divide the rows.
template <class T, class S>
AETHER_INLINE void merge_splits(const PagedBatch<T, S>& batch, const PartialRows& partial,
                                const ScoreModifiers& modifiers, T* out, const am_team* team) {
  const AttentionLayout<T, S>& layout = batch.layout;
  int64_t first_row = 0, item = 0;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const SequenceSplit split = batch.split(s, first_row);
    first_row = batch.end_row(split);
    if (!split.is_split()) continue;
    const int64_t num_rows = split.last_query_block.count * layout.group;
    for (int64_t i = 0; i < batch.num_heads * num_rows; ++i, ++item) {
      if (item % team->num_workers != team->worker) continue;
      const int64_t head = i / num_rows, r = i % num_rows;
      float* sums = partial.sums(partial_row(batch, split, head, split.last_query_block.first_key_block(), r));
      OnlineSoftmaxState all = *partial.state(sums);
      for (int64_t key_block = 1; key_block < split.num_key_blocks; ++key_block) {
        float* next =
            partial.sums(partial_row(batch, split, head, split.last_query_block.first_key_block() + key_block, r));
        merge_partials(all, sums, *partial.state(next), next, layout.padded_dim);
      }
      const int64_t query = batch.cu_seqlens_q[s] + r / layout.group;
      const int64_t query_head = head * layout.group + r % layout.group;
      write_output(all, sums, layout.value_dim, modifiers.sink(query_head),
                   out + (query * batch.num_heads * layout.group + query_head) * layout.value_dim);
    }
  }
}

// Some queries of a sequence, one kv head, and a range of key blocks.
struct WorkItem {
  SequenceSplit split;
  int64_t sequence, head, index;  // index: of the query block, or of the chunk of a split context
  QueryBlock query_block;

  int64_t key_block_begin() const {
    return query_block.first_key_block() + (split.is_split() ? index * split.chunk : 0);
  }
  int64_t key_block_end() const {
    return split.is_split() ? smaller(key_block_begin() + split.chunk, query_block.end_key_block())
                            : query_block.end_key_block();
  }
};

// The work items of all sequences, in one order.
template <class T, class S>
class WorkItems {
 public:
  explicit WorkItems(const PagedBatch<T, S>& batch) : batch_(batch) {
    if (batch.num_sequences > 0) split_ = batch.split(0, 0);
  }

  // Item `number`. Numbers must not decrease from call to call: the walk over the sequences continues where it stopped.
  WorkItem at(int64_t number) {
    while (number - first_item_ >= split_.num_items * batch_.num_heads) {
      first_item_ += split_.num_items * batch_.num_heads;
      split_ = batch_.split(++sequence_, batch_.end_row(split_));
    }
    // The last query block has the most keys: longest first balances the end.
    const int64_t index = split_.num_items - 1 - (number - first_item_) / batch_.num_heads;
    const int64_t head = (number - first_item_) % batch_.num_heads;
    return {split_, sequence_, head, index, batch_.query_block(sequence_, split_.is_split() ? 0 : index)};
  }

 private:
  const PagedBatch<T, S>& batch_;
  int64_t sequence_ = 0, first_item_ = 0;
  SequenceSplit split_{};
};

// The modifiers of a call whose optional inputs, sinks and slopes, begin at `extra`.
inline ScoreModifiers score_modifiers(const am_tensor* extra, const am_attr* attrs) {
  return {static_cast<float>(attrs[2].f), data<const float>(extra[1]), data<const float>(extra[0])};
}

// Row numbers in the cache of one sequence's keys of one head.
struct PagedKeyRows {
  const int32_t* block_table;
  int64_t num_heads, block_size, head;

  void operator()(int64_t key, int64_t count, int64_t* rows) const {
    int64_t entry = key / block_size, offset = key % block_size;
    for (int64_t i = 0; i < count; ++entry, offset = 0) {
      const int64_t first = (block_table[entry] * num_heads + head) * block_size;
      for (; offset < block_size && i < count; ++i, ++offset) rows[i] = first + offset;
    }
  }
};

// The layout of a call with queries [T, H, C] and a cache [N, K, P, C].
template <class T, class S>
AttentionLayout<T, S> paged_layout(const am_tensor& q, const am_tensor& cache, int64_t value_dim) {
  return {q.shape[1], cache.shape[1], cache.shape[3], value_dim};
}

// Attention of the queries `q` to rows of a cache that has the shape of `k_cache`.
template <class T, class S>
AETHER_INLINE void attend_pages(const am_tensor& q, const am_tensor& k_cache, const am_tensor* tables,
                                const am_tensor& out, float scale, int64_t window, const KeysAndValues<S>& stored,
                                const ScoreModifiers& modifiers, const am_team* team) {
  const CacheLayout cache(k_cache);
  const PagedBatch<T, S> batch(paged_layout<T, S>(q, k_cache, last_dim(out)), cache.num_heads, tables, window, team);
  const AttentionLayout<T, S>& layout = batch.layout;
  const int64_t num_heads = q.shape[1];
  const AttentionScratch<T, S> scratch(layout, num_heads, team->scratch);
  const PartialRows partial = {team, layout.bytes(), layout.padded_dim};

  int64_t num_items = 0, num_partial_rows = 0;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const SequenceSplit split = batch.split(s, num_partial_rows);
    num_items += split.num_items * cache.num_heads;
    num_partial_rows = batch.end_row(split);
  }
  const auto rows_of = [&](const WorkItem& item) {
    return PagedKeyRows{batch.block_tables + item.sequence * batch.table_width, cache.num_heads, cache.block_size,
                        item.head};
  };

  WorkItems<T, S> work_items(batch);
  for_each_claimed(team, num_items, [&](int64_t number) {
    const WorkItem item = work_items.at(number);
    const QueryBlock& query_block = item.query_block;
    const PagedKeyRows find_rows = rows_of(item);
    // Workers of equal speed claim items in turn.
    const auto find_next_block = [&](KeyBlockRows& block) {
      if (number + team->num_workers >= num_items) return;
      const WorkItem next = WorkItems<T, S>(work_items).at(number + team->num_workers);
      const int64_t key_block = next.key_block_begin();
      block.find(next.query_block, key_block * kKeyBlock,
                 smaller(next.query_block.end(), next.key_block_end() * kKeyBlock), rows_of(next));
    };
    const int64_t first_query =
        batch.cu_seqlens_q[item.sequence] + (item.split.is_split() ? 0 : item.index * layout.queries);
    const int64_t first_head = first_query * num_heads + item.head * layout.group;
    const T* queries = data<const T>(q) + first_head * layout.head_dim;
    const ScoreModifiers head_modifiers = modifiers.from_head(item.head * layout.group);
    if (!item.split.is_split()) {
      attend(queries, data<T>(out) + first_head * layout.value_dim, query_block, stored, find_rows, find_next_block,
             scale, head_modifiers, layout, scratch);
      return;
    }
    pack_queries(queries, query_block, layout, scratch);
    attend_key_blocks(query_block, item.key_block_begin(), item.key_block_end(), stored, find_rows, find_next_block,
                      scale, head_modifiers, layout, scratch,
                      [&](int64_t key_block, int64_t row_begin, int64_t row_end) {
                        for (int64_t r = row_begin; r < row_end; ++r) {
                          float* sums = partial.sums(partial_row(batch, item.split, item.head, key_block, r));
                          std::memcpy(sums, scratch.partial_sums + (r - row_begin) * layout.padded_dim,
                                      static_cast<size_t>(layout.padded_dim) * sizeof(float));
                          *partial.state(sums) = scratch.partial[r - row_begin];
                        }
                      });
  });
  if (num_partial_rows == 0) return;
  team->barrier(team);
  merge_splits(batch, partial, modifiers, data<T>(out), team);
}

template <class T, class S>
size_t paged_scratch(const am_tensor& q, const am_tensor& cache, int64_t value_dim, int32_t num_workers) {
  const AttentionLayout<T, S> layout = paged_layout<T, S>(q, cache, value_dim);
  const size_t partial = num_workers > 1 ? kMaxPartialRows * PartialRows::row_bytes(layout.padded_dim) : 0;
  return layout.bytes() + partial;
}

template <class T>
void paged_attention(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const KeysAndValues<T> stored = {data<const T>(in[1]), data<const T>(in[2]), nullptr, nullptr};
  attend_pages<T>(in[0], in[1], in + 3, out[0], static_cast<float>(attrs[0].f), attrs[1].i, stored,
                  score_modifiers(in + 6, attrs), team);
}

template <class T>
size_t paged_attention_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return paged_scratch<T, T>(in[0], in[1], in[1].shape[3], num_workers);
}

// With a quantised cache: one scale for each key and value.
template <class T>
void paged_attention_quantized(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const KeysAndValues<Code> stored = {data<const Code>(in[1]), data<const Code>(in[2]), data<const float>(in[6]),
                                      data<const float>(in[7]), in[1].dtype};
  attend_pages<T>(in[0], in[1], in + 3, out[0], static_cast<float>(attrs[0].f), attrs[1].i, stored,
                  score_modifiers(in + 8, attrs), team);
}

template <class T>
size_t paged_attention_quantized_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return paged_scratch<T, Code>(in[0], in[1], in[1].shape[3], num_workers);
}

// Latent attention (MLA; DeepSeek-V2, 2024): values are the first value_dim elements of the keys, so both products read
// the same rows.
template <class T>
void mla_attention(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const KeysAndValues<T> stored = {data<const T>(in[1]), data<const T>(in[1]), nullptr, nullptr};
  attend_pages<T>(in[0], in[1], in + 2, out[0], static_cast<float>(attrs[1].f), 0, stored, {}, team);
}

template <class T>
size_t mla_attention_scratch(const am_tensor* in, const am_tensor*, const am_attr* attrs, int32_t num_workers) {
  return paged_scratch<T, T>(in[0], in[1], attrs[0].i, num_workers);
}

}  // namespace aether::cpu::AETHER_ISA
