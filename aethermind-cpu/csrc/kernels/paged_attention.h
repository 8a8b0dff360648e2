// Causal attention over the paged cache.
//
// A unit of work is a sequence, one of its kv heads and a run of its queries. Where that would leave workers without
// work, a sequence's context is cut into units of several parts (attend.h): their sums go to memory that the team
// shares and are joined, in order, once all are there.
#pragma once

#include "kernels/attend.h"
#include "kernels/kv_cache_write.h"

namespace aether::cpu::AETHER_ISA {

// Rows of partial sums that a worker has room for; what would need more is not split.
inline constexpr int64_t kPartialRows = 4096;
inline constexpr int64_t kUnitsOfWorker = 4;

// Parts of a split context that one worker goes through, if that leaves each enough units: of the first, nothing has
// been fetched when it is wanted.
inline constexpr int64_t kPartsOfUnit = 4;
inline constexpr int64_t kFewestUnitsOfWorker = 2;

// Sums of one row over one part, one after another in the scratch of all workers.
struct PartialRows {
  const am_team* team;
  size_t offset_bytes;
  int64_t padded_dim;

  static int64_t capacity(int32_t num_workers) { return num_workers > 1 ? kPartialRows * num_workers : 0; }
  static size_t row_bytes(int64_t padded_dim) { return static_cast<size_t>(padded_dim) * sizeof(float) + kLineBytes; }

  float* sums(int64_t row) const {
    char* scratch = static_cast<char*>(team->scratch_of(team, static_cast<int32_t>(row / kPartialRows)));
    return reinterpret_cast<float*>(scratch + offset_bytes +
                                    static_cast<size_t>(row % kPartialRows) * row_bytes(padded_dim));
  }
  Softened* softened(float* sums) const { return reinterpret_cast<Softened*>(sums + padded_dim); }
};

// How one sequence's attention is cut.
struct SequenceCut {
  QueryRun last_run;
  int64_t num_runs, num_parts, chunk, num_units, first_row;  // of one kv head; partial rows start at first_row

  bool is_split() const { return chunk < num_parts; }
};

// The ragged batch of a call.
template <class T, class S>
struct PagedBatch {
  AttentionLayout<T, S> layout;
  const int32_t *cu_seqlens_q, *seqlens_k, *block_tables;
  int64_t num_sequences, table_width, num_heads, window, num_workers;
  int64_t num_parts = 0;

  PagedBatch(const am_tensor* in, int64_t window, const am_team* team)
      : layout(in[0].shape[1], in[1].shape[1], in[1].shape[3]),
        cu_seqlens_q(data<const int32_t>(in[3])),
        seqlens_k(data<const int32_t>(in[4])),
        block_tables(data<const int32_t>(in[5])),
        num_sequences(in[4].shape[0]),
        table_width(in[5].shape[1]),
        num_heads(in[1].shape[1]),
        window(window),
        num_workers(team->num_workers) {
    layout.limit_queries(num_heads * cu_seqlens_q[num_sequences] / (kUnitsOfWorker * num_workers));
    for (int64_t s = 0; s < num_sequences; ++s) {
      const SequenceCut whole = cut(s, 0);
      num_parts += whole.num_runs * whole.num_parts * num_heads;
    }
  }

  int64_t num_queries(int64_t s) const { return cu_seqlens_q[s + 1] - cu_seqlens_q[s]; }

  QueryRun run(int64_t s, int64_t index) const {
    const int64_t first = index * layout.queries, count = smaller(layout.queries, num_queries(s) - first);
    return {count, seqlens_k[s] - num_queries(s) + first, seqlens_k[s], window};
  }

  // Sequence s, where `first_row` partial rows are taken already. A context is split when it would be a large share of
  // what every worker has to do.
  SequenceCut cut(int64_t s, int64_t first_row) const {
    SequenceCut result = {{}, divide_up(num_queries(s), layout.queries), 0, 0, 0, first_row};
    if (result.num_runs == 0) return result;
    result.last_run = run(s, result.num_runs - 1);
    result.num_parts = result.last_run.end_part() - result.last_run.first_part();
    result.chunk = result.num_parts;
    result.num_units = result.num_runs;
    const int64_t few = smaller(kPartsOfUnit, num_parts / (kFewestUnitsOfWorker * num_workers));
    const int64_t fair = larger(1, larger(few, num_parts / (kUnitsOfWorker * num_workers)));
    const int64_t num_rows = num_heads * result.num_parts * result.last_run.count * layout.group;
    const bool has_room = first_row + num_rows <= PartialRows::capacity(static_cast<int32_t>(num_workers));
    if (result.num_runs == 1 && result.num_parts > fair && has_room) {
      result.chunk = fair;
      result.num_units = divide_up(result.num_parts, fair);
    }
    return result;
  }
  int64_t end_row(const SequenceCut& cut) const {
    return cut.first_row + (cut.is_split() ? num_heads * cut.num_parts * cut.last_run.count * layout.group : 0);
  }
};

// Where in the partial rows row r of a part lies.
template <class T, class S>
AETHER_INLINE int64_t partial_row(const PagedBatch<T, S>& batch, const SequenceCut& cut, int64_t head, int64_t part,
                                  int64_t r) {
  const int64_t num_rows = cut.last_run.count * batch.layout.group;
  return cut.first_row + (head * cut.num_parts + part - cut.last_run.first_part()) * num_rows + r;
}

// Joins the parts of all split sequences, each worker some of the rows.
template <class T, class S>
AETHER_INLINE void join_split(const PagedBatch<T, S>& batch, const PartialRows& partial, T* out, int64_t row_stride,
                              const am_team* team) {
  const AttentionLayout<T, S>& layout = batch.layout;
  int64_t first_row = 0, item = 0;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const SequenceCut cut = batch.cut(s, first_row);
    first_row = batch.end_row(cut);
    if (!cut.is_split()) continue;
    const int64_t num_rows = cut.last_run.count * layout.group;
    for (int64_t i = 0; i < batch.num_heads * num_rows; ++i, ++item) {
      if (item % team->num_workers != team->worker) continue;
      const int64_t head = i / num_rows, r = i % num_rows;
      float* sums = partial.sums(partial_row(batch, cut, head, cut.last_run.first_part(), r));
      Softened all = *partial.softened(sums);
      for (int64_t part = 1; part < cut.num_parts; ++part) {
        float* more = partial.sums(partial_row(batch, cut, head, cut.last_run.first_part() + part, r));
        join_part(all, sums, *partial.softened(more), more, layout.padded_dim);
      }
      const int64_t query = batch.cu_seqlens_q[s] + r / layout.group;
      const int64_t column = (head * layout.group + r % layout.group) * layout.head_dim;
      write_row(all, sums, layout.head_dim, out + query * row_stride + column);
    }
  }
}

// One piece of the work: some queries of a sequence, one kv head, and the parts of the context that they are taken
// against.
struct Unit {
  SequenceCut cut;
  int64_t sequence, head, index;  // index: of the run, or of the chunk of a split context
  QueryRun run;

  int64_t part_begin() const { return run.first_part() + (cut.is_split() ? index * cut.chunk : 0); }
  int64_t part_end() const {
    return cut.is_split() ? smaller(part_begin() + cut.chunk, run.end_part()) : run.end_part();
  }
};

// The units of all sequences in one order.
template <class T, class S>
class UnitWalk {
 public:
  explicit UnitWalk(const PagedBatch<T, S>& batch) : batch_(batch) {
    if (batch.num_sequences > 0) cut_ = batch.cut(0, 0);
  }

  // Unit `number`, which is none before the last one asked for: the walk over the sequences goes on where it stopped.
  Unit at(int64_t number) {
    while (number - first_unit_ >= cut_.num_units * batch_.num_heads) {
      first_unit_ += cut_.num_units * batch_.num_heads;
      cut_ = batch_.cut(++sequence_, batch_.end_row(cut_));
    }
    // The last run sees the most keys: longest first evens out the end.
    const int64_t index = cut_.num_units - 1 - (number - first_unit_) / batch_.num_heads;
    const int64_t head = (number - first_unit_) % batch_.num_heads;
    return {cut_, sequence_, head, index, batch_.run(sequence_, cut_.is_split() ? 0 : index)};
  }

 private:
  const PagedBatch<T, S>& batch_;
  int64_t sequence_ = 0, first_unit_ = 0;
  SequenceCut cut_{};
};

// Where one sequence's keys of one head lie among the rows of the cache.
struct PageRows {
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

template <class T, class S>
AETHER_INLINE void attend_pages(const am_tensor* in, const am_tensor* out, const am_attr* attrs,
                                const KeysAndValues<S>& stored, const am_team* team) {
  const CacheLayout cache(in[1]);
  const PagedBatch<T, S> batch(in, attrs[1].i, team);
  const AttentionLayout<T, S>& layout = batch.layout;
  const int64_t row_stride = in[0].shape[1] * cache.head_dim;
  const AttentionScratch<T, S> scratch(layout, row_stride, team->scratch);
  const PartialRows partial = {team, layout.bytes(), layout.padded_dim};
  const float scale = static_cast<float>(attrs[0].f);

  int64_t num_units = 0, num_partial_rows = 0;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const SequenceCut cut = batch.cut(s, num_partial_rows);
    num_units += cut.num_units * cache.num_heads;
    num_partial_rows = batch.end_row(cut);
  }
  const auto rows_of = [&](const Unit& unit) {
    return PageRows{batch.block_tables + unit.sequence * batch.table_width, cache.num_heads, cache.block_size,
                    unit.head};
  };

  UnitWalk<T, S> walk(batch);
  for_each_claimed(team, num_units, [&](int64_t number) {
    const Unit unit = walk.at(number);
    const QueryRun& run = unit.run;
    const PageRows find_rows = rows_of(unit);
    // Workers that keep step take units in turns.
    const auto find_next = [&](BlockRows& block) {
      if (number + team->num_workers >= num_units) return;
      const Unit next = UnitWalk<T, S>(walk).at(number + team->num_workers);
      const int64_t part = next.part_begin();
      block.find(next.run, part * kKeyBlock, smaller(next.run.end(), next.part_end() * kKeyBlock), rows_of(next));
    };
    const int64_t first_query =
        batch.cu_seqlens_q[unit.sequence] + (unit.cut.is_split() ? 0 : unit.index * layout.queries);
    const int64_t offset = first_query * row_stride + unit.head * layout.group * cache.head_dim;
    const T* q = data<const T>(in[0]) + offset;
    if (!unit.cut.is_split()) {
      attend(q, data<T>(out[0]) + offset, run, stored, find_rows, find_next, scale, layout, scratch);
      return;
    }
    pack_queries(q, run, layout, scratch);
    attend_parts(run, unit.part_begin(), unit.part_end(), stored, find_rows, find_next, scale, layout, scratch,
                 [&](int64_t part, int64_t row_begin, int64_t row_end) {
                   for (int64_t r = row_begin; r < row_end; ++r) {
                     float* sums = partial.sums(partial_row(batch, unit.cut, unit.head, part, r));
                     std::memcpy(sums, scratch.part_sums + (r - row_begin) * layout.padded_dim,
                                 static_cast<size_t>(layout.padded_dim) * sizeof(float));
                     *partial.softened(sums) = scratch.part[r - row_begin];
                   }
                 });
  });
  if (num_partial_rows == 0) return;
  team->barrier(team);
  join_split(batch, partial, data<T>(out[0]), row_stride, team);
}

template <class T, class S>
size_t paged_scratch(const am_tensor* in, int32_t num_workers) {
  const AttentionLayout<T, S> layout(in[0].shape[1], in[1].shape[1], in[1].shape[3]);
  const size_t partial = num_workers > 1 ? kPartialRows * PartialRows::row_bytes(layout.padded_dim) : 0;
  return layout.bytes() + partial;
}

template <class T>
void paged_attention(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  attend_pages<T>(in, out, attrs, KeysAndValues<T>{data<const T>(in[1]), data<const T>(in[2]), nullptr, nullptr}, team);
}

template <class T>
size_t paged_attention_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return paged_scratch<T, T>(in, num_workers);
}

// With keys and values as codes, a factor for each.
template <class T>
void paged_attention_quantized(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const KeysAndValues<Code> stored = {data<const Code>(in[1]), data<const Code>(in[2]), data<const float>(in[6]),
                                      data<const float>(in[7]), in[1].dtype};
  attend_pages<T>(in, out, attrs, stored, team);
}

template <class T>
size_t paged_attention_quantized_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return paged_scratch<T, Code>(in, num_workers);
}

}  // namespace aether::cpu::AETHER_ISA
