// Reductions over any dims: sum, mean, prod, max, min, argmax. Nothing is transposed: where the innermost dim is
// reduced, rows are; where it is kept, whole rows are combined element by element.
#pragma once

#include <cstring>

#include "kernels/loops.h"
#include "kernels/reductions.h"
#include "kernels/team.h"

namespace aether::cpu::AETHER_ISA {

struct Sum {
  static constexpr float kNeutral = 0.0f;
  static constexpr bool kIsIdempotent = false;
  AETHER_INLINE static Vec combine(const Vec& x, const Vec& y) { return x + y; }
  AETHER_INLINE static double combine(double x, double y) { return x + y; }
  AETHER_INLINE static double all_lanes(const Vec& x) { return reduce_add_double(x); }
};

struct Prod {
  static constexpr float kNeutral = 1.0f;
  static constexpr bool kIsIdempotent = false;
  AETHER_INLINE static Vec combine(const Vec& x, const Vec& y) { return x * y; }
  AETHER_INLINE static double combine(double x, double y) { return x * y; }
  AETHER_INLINE static double all_lanes(const Vec& x) {
    float lanes[kLanes];
    store(lanes, x);
    double product = 1.0;
    for (float lane : lanes) product *= static_cast<double>(lane);
    return product;
  }
};

struct Max {
  static constexpr float kNeutral = -__builtin_inff();
  static constexpr bool kIsIdempotent = true;
  AETHER_INLINE static Vec combine(const Vec& x, const Vec& y) { return AETHER_ISA::max(x, y); }
  AETHER_INLINE static double combine(double x, double y) { return x > y ? x : y; }
  AETHER_INLINE static double all_lanes(const Vec& x) { return static_cast<double>(reduce_max(x)); }
};

struct Min {
  static constexpr float kNeutral = __builtin_inff();
  static constexpr bool kIsIdempotent = true;
  AETHER_INLINE static Vec combine(const Vec& x, const Vec& y) { return AETHER_ISA::min(x, y); }
  AETHER_INLINE static double combine(double x, double y) { return x < y ? x : y; }
  AETHER_INLINE static double all_lanes(const Vec& x) { return static_cast<double>(-reduce_max(-x)); }
};

// The elements that make up a result, in order, are divided into blocks, and these into parts. A block is combined in
// float32, blocks and parts in float64. The division depends on the reduced dims alone, so results do not depend on
// other dims or on the number of workers. Workers may share the parts of a result.
inline constexpr int64_t kRowsPerBlock = 256;
inline constexpr int64_t kMaxParts = 16;
inline constexpr int64_t kColumnsPerItem = 512;
// Workers share the parts of a result only from this many elements on: for fewer, a barrier costs more than it saves.
inline constexpr int64_t kMinSharedElements = 1 << 16;

struct Reduction {
  Loops<1> kept;     // outer loops over results
  Loops<1> reduced;  // outer loops over elements of a result
  int64_t inner = 1;
  bool is_inner_reduced = true;
  int64_t num_kept = 1, num_reduced = 1;

  // The kept dims are those whose stride in `out` is not 0.
  AETHER_INLINE Reduction(const am_tensor& x, const bool (&is_reduced)[AM_MAX_DIMS]) {
    int64_t strides[AM_MAX_DIMS];
    strides_of(x, strides);
    Loops<2> loops;  // the second stride is that of the result
    int64_t stride = 1;
    int64_t result_strides[AM_MAX_DIMS] = {};
    for (int32_t d = x.ndim - 1; d >= 0; --d) {
      if (is_reduced[d]) continue;
      result_strides[d] = stride;
      stride *= x.shape[d];
    }
    for (int32_t d = 0; d < x.ndim; ++d) loops.add(x.shape[d], {strides[d], result_strides[d]});
    for (int32_t d = 0; d + 1 < loops.count; ++d) {
      Loops<1>& role = loops.stride[1][d] ? kept : reduced;
      role.size[role.count] = loops.size[d];
      role.stride[0][role.count++] = loops.stride[0][d];
    }
    if (loops.count > 0) {
      inner = loops.size[loops.count - 1];
      is_inner_reduced = loops.stride[1][loops.count - 1] == 0;
    }
    num_kept = kept.num_iterations();
    num_reduced = reduced.num_iterations();
  }
};

AETHER_INLINE Reduction reduction_of(const am_tensor& x, const int64_t* dims, int64_t num_dims) {
  bool is_reduced[AM_MAX_DIMS] = {};
  for (int32_t d = 0; d < x.ndim; ++d) is_reduced[d] = num_dims == 0;
  for (int64_t i = 0; i < num_dims; ++i) is_reduced[dims[i] < 0 ? dims[i] + x.ndim : dims[i]] = true;
  return Reduction(x, is_reduced);
}

// Four accumulators of rows.
template <class Op>
struct RowAccumulator {
  Vec a = set1(Op::kNeutral), b = a, c = a, d = a;

  template <class T>
  AETHER_INLINE void add(const T* row, int64_t size) {
    int64_t i = 0;
    for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
      a = Op::combine(a, load(row + i));
      b = Op::combine(b, load(row + i + kLanes));
      c = Op::combine(c, load(row + i + 2 * kLanes));
      d = Op::combine(d, load(row + i + 3 * kLanes));
    }
    for (; i + kLanes <= size; i += kLanes) a = Op::combine(a, load(row + i));
    if (i == size) return;
    if constexpr (Op::kNeutral == 0.0f) {
      b = Op::combine(b, load(row + i, size - i));
    } else if (Op::kIsIdempotent && size >= kLanes) {
      b = Op::combine(b, load(row + size - kLanes));
    } else {
      float tail[kLanes];
      store(tail, set1(Op::kNeutral));
      for (int64_t lane = 0; i + lane < size; ++lane) tail[lane] = element(row + i + lane);
      b = Op::combine(b, load(tail));
    }
  }

  AETHER_INLINE double total() const { return Op::all_lanes(Op::combine(Op::combine(a, b), Op::combine(c, d))); }
};

// Results one by one, each from `num_reduced` rows of `inner` elements.
template <class Op, class T>
struct ReducedRows {
  static constexpr int64_t kColumns = 1;
  const Reduction& reduction;
  const T* x;
  int64_t chunks, rows_per_block, num_blocks;

  AETHER_INLINE ReducedRows(const Reduction& all, const T* elements) : reduction(all), x(elements) {
    chunks = larger(ceil_div(all.inner, kFloat32BlockSize), 1);
    rows_per_block = chunks > 1 ? 1 : larger(kFloat32BlockSize / round_up(larger(all.inner, 1), kLanes), 1);
    num_blocks = chunks > 1 ? all.num_reduced * chunks : ceil_div(all.num_reduced, rows_per_block);
  }

  AETHER_INLINE int64_t num_items() const { return reduction.num_kept; }

  // Combines blocks begin … end - 1 of result `item` into `totals`.
  AETHER_INLINE void run(int64_t item, int64_t begin, int64_t end, double* totals) const {
    const T* first = x + Position<1>(reduction.kept, item).offset[0];
    double total = static_cast<double>(Op::kNeutral);
    Position<1> row(reduction.reduced, chunks > 1 ? begin / chunks : begin * rows_per_block);
    for (int64_t block = begin; block < end; ++block) {
      RowAccumulator<Op> sum;
      if (chunks > 1) {
        const int64_t from = block % chunks * kFloat32BlockSize;
        sum.add(first + row.offset[0] + from, smaller(reduction.inner - from, kFloat32BlockSize));
        if (block % chunks == chunks - 1) row.next();
      } else {
        const int64_t last = smaller((block + 1) * rows_per_block, reduction.num_reduced);
        for (int64_t r = block * rows_per_block; r < last; ++r, row.next()) {
          sum.add(first + row.offset[0], reduction.inner);
        }
      }
      total = Op::combine(total, sum.total());
    }
    *totals = total;
  }

  AETHER_INLINE int64_t width(int64_t) const { return 1; }
  AETHER_INLINE int64_t result(int64_t item) const { return item; }
};

// Results of up to kColumnsPerItem neighbours, each from `num_reduced` elements.
template <class Op, class T>
struct ReducedColumns {
  static constexpr int64_t kColumns = kColumnsPerItem;
  const Reduction& reduction;
  const T* x;
  int64_t num_elements, chunks, num_blocks;

  AETHER_INLINE ReducedColumns(const Reduction& all, const T* elements) : reduction(all), x(elements) {
    num_elements = all.num_kept * all.num_reduced * all.inner;
    chunks = ceil_div(all.inner, kColumns);
    num_blocks = ceil_div(all.num_reduced, kRowsPerBlock);
  }

  AETHER_INLINE int64_t num_items() const { return reduction.num_kept * chunks; }
  AETHER_INLINE int64_t width(int64_t item) const {
    return smaller(kColumns, reduction.inner - item % chunks * kColumns);
  }
  AETHER_INLINE int64_t result(int64_t item) const {
    return item / chunks * reduction.inner + item % chunks * kColumns;
  }

  AETHER_INLINE void run(int64_t item, int64_t begin, int64_t end, double* totals) const {
    const int64_t n = width(item);
    const T* first = x + Position<1>(reduction.kept, item / chunks).offset[0] + item % chunks * kColumns;
    for (int64_t c = 0; c < n; ++c) totals[c] = static_cast<double>(Op::kNeutral);
    float sums[kColumns];
    Position<1> row(reduction.reduced, begin * kRowsPerBlock);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t rows = smaller(kRowsPerBlock, reduction.num_reduced - block * kRowsPerBlock);
      combine_rows(first, row, rows, n, sums);
      for (int64_t c = 0; c < n; ++c) totals[c] = Op::combine(totals[c], static_cast<double>(sums[c]));
    }
  }

  // Results of one block.
  AETHER_INLINE void run_block(int64_t item, float* sums) const {
    const T* first = x + Position<1>(reduction.kept, item / chunks).offset[0] + item % chunks * kColumns;
    Position<1> row(reduction.reduced, 0);
    combine_rows(first, row, reduction.num_reduced, width(item), sums);
  }

 private:
  // sums = the combination of `count` rows from `row` on, which ends up `count` rows later.
  AETHER_INLINE void combine_rows(const T* first, Position<1>& row, int64_t count, int64_t n, float* sums) const {
    if (n <= kLanes && reduction.reduced.count == 1) {
      const T* from = first + row.offset[0];
      combine_narrow_rows(from, reduction.reduced.stride[0][0], count, n, sums);
      row.offset[0] += reduction.reduced.stride[0][0] * count;
    } else {
      combine_wide_rows(first, row, count, n, sums);
    }
  }

  // In the order of combine_wide_rows, with the sum in a register. Lanes from n on are of other elements, or 0.
  AETHER_INLINE void combine_narrow_rows(const T* from, int64_t stride, int64_t count, int64_t n, float* sums) const {
    Vec sum = set1(Op::kNeutral);
    int64_t r = 0;
    const auto add_four_by = [&](auto load_row) {
      const Vec low = Op::combine(load_row(from + r * stride), load_row(from + (r + 1) * stride));
      const Vec high = Op::combine(load_row(from + (r + 2) * stride), load_row(from + (r + 3) * stride));
      sum = Op::combine(sum, Op::combine(low, high));
    };
    const int64_t readable = x + num_elements - from;
    for (; r + 4 <= count && (r + 3) * stride + kLanes <= readable; r += 4) {
      add_four_by([](const T* p) { return load(p); });
    }
    for (; r + 4 <= count; r += 4) add_four_by([n](const T* p) { return load_lanes(p, n); });
    for (; r < count; ++r) sum = Op::combine(sum, load_lanes(from + r * stride, n));
    store(sums, sum);
  }

  AETHER_INLINE static void combine_wide_rows(const T* first, Position<1>& row, int64_t count, int64_t n, float* sums) {
    for (int64_t c = 0; c < n; c += kLanes) store(sums + c, set1(Op::kNeutral));
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) {
      const T* rows[4];
      for (const T*& each : rows) {
        each = first + row.offset[0];
        row.next();
      }
      add_four(sums, rows, n);
    }
    for (; r < count; ++r, row.next()) {
      const T* each = first + row.offset[0];
      for (int64_t c = 0; c < n; c += kLanes) {
        store(sums + c, Op::combine(load(sums + c), load_lanes(each + c, smaller(n - c, kLanes))));
      }
    }
  }

  AETHER_INLINE static void add_four(float* sums, const T* const (&rows)[4], int64_t n) {
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes) {
      const Vec low = Op::combine(load(rows[0] + c), load(rows[1] + c));
      const Vec high = Op::combine(load(rows[2] + c), load(rows[3] + c));
      store(sums + c, Op::combine(load(sums + c), Op::combine(low, high)));
    }
    if (c == n) return;
    const int64_t left = n - c;
    const Vec low = Op::combine(load(rows[0] + c, left), load(rows[1] + c, left));
    const Vec high = Op::combine(load(rows[2] + c, left), load(rows[3] + c, left));
    store(sums + c, Op::combine(load(sums + c), Op::combine(low, high)));
  }
};

template <class T>
AETHER_INLINE void store_totals(T* out, const double* totals, int64_t n, double divisor) {
  for (int64_t c = 0; c < n; c += kLanes) {
    float values[kLanes] = {};
    const int64_t lanes = smaller(n - c, kLanes);
    for (int64_t lane = 0; lane < lanes; ++lane) values[lane] = static_cast<float>(totals[c + lane] / divisor);
    store(out + c, load(values), lanes);
  }
}

// Computes every item of ReducedRows or ReducedColumns.
template <class Op, class T, class Items>
AETHER_INLINE void reduce_items(const Items& items, T* out, double divisor, const am_team* team) {
  constexpr int64_t kColumns = Items::kColumns;
  const int64_t num_items = items.num_items(), num_workers = team->num_workers;
  const int64_t blocks_per_part = larger(ceil_div(items.num_blocks, kMaxParts), 1);
  const int64_t parts = larger(ceil_div(items.num_blocks, blocks_per_part), 1);
  const auto run_part = [&](int64_t item, int64_t part, double* totals) {
    items.run(item, part * blocks_per_part, smaller((part + 1) * blocks_per_part, items.num_blocks), totals);
  };
  // Writes an item, given a function to the totals of a part.
  const auto finish = [&](int64_t item, auto totals_of) {
    const int64_t n = items.width(item);
    double totals[kColumns];
    for (int64_t c = 0; c < n; ++c) totals[c] = static_cast<double>(Op::kNeutral);
    for (int64_t part = 0; part < parts; ++part) {
      const double* more = totals_of(part);
      for (int64_t c = 0; c < n; ++c) totals[c] = Op::combine(totals[c], more[c]);
    }
    store_totals(out + items.result(item), totals, n, divisor);
  };
  const int64_t elements = items.reduction.num_kept * items.reduction.num_reduced * items.reduction.inner;
  if (num_workers == 1 || parts == 1 || num_items >= 2 * num_workers || elements < kMinSharedElements) {
    // No two workers write one cache line where results are single.
    const Range range = share(team, num_items, kColumns == 1 ? kLanes : 1);
    for (int64_t item = range.begin; item < range.end; ++item) {
      double of_part[kColumns];
      finish(item, [&](int64_t part) {
        run_part(item, part, of_part);
        return of_part;
      });
    }
    return;
  }
  const int64_t num_jobs = num_items * parts;
  const Range jobs = share(team, num_jobs);
  for (int64_t job = jobs.begin; job < jobs.end; ++job) {
    run_part(job / parts, job % parts, static_cast<double*>(team->scratch) + (job - jobs.begin) * kColumns);
  }
  team->barrier(team);
  const Range range = share(team, num_items);
  for (int64_t item = range.begin; item < range.end; ++item) {
    finish(item, [&](int64_t part) {
      const int64_t job = item * parts + part;
      const int64_t owner = ((job + 1) * num_workers - 1) / num_jobs;
      const int64_t first = num_jobs * owner / num_workers;
      return static_cast<const double*>(team->scratch_of(team, static_cast<int32_t>(owner))) + (job - first) * kColumns;
    });
  }
}

// Rows that are one block each.
template <class Op, class T>
AETHER_INLINE void reduce_short_rows(const T* x, int64_t num_rows, int64_t size, T* out, float divisor,
                                     const am_team* team) {
  const Range range = share(team, num_rows, kLanes);
  for (int64_t first = range.begin; first < range.end; first += kLanes) {
    float results[kLanes] = {};
    const int64_t n = smaller(kLanes, range.end - first);
    for (int64_t r = 0; r < n; ++r) {
      RowAccumulator<Op> sum;
      sum.add(x + (first + r) * size, size);
      results[r] = static_cast<float>(sum.total());
    }
    store(out + first, load(results) / set1(divisor), n);
  }
}

// Columns that are one block each.
template <class Op, class T>
AETHER_INLINE void reduce_short_columns(const ReducedColumns<Op, T>& items, T* out, float divisor,
                                        const am_team* team) {
  const Range range = share(team, items.num_items());
  for (int64_t item = range.begin; item < range.end; ++item) {
    float sums[kColumnsPerItem];
    items.run_block(item, sums);
    T* results = out + items.result(item);
    const int64_t n = items.width(item);
    for (int64_t c = 0; c < n; c += kLanes) {
      store(results + c, load(sums + c) / set1(divisor), smaller(n - c, kLanes));
    }
  }
}

// Of the parts that a worker computes of fewer than 2 · num_workers items.
inline size_t reduce_scratch(const am_tensor*, const am_tensor*, const am_attr*, int32_t num_workers) {
  return num_workers == 1 ? 0 : static_cast<size_t>(2 * kMaxParts + 1) * kColumnsPerItem * sizeof(double);
}

template <class Op, class T>
AETHER_INLINE void reduce_dims(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team,
                               bool is_mean = false) {
  const int64_t num_results = num_elements(out[0]);
  if (num_results == 0) return;
  const T* x = data<const T>(in[0]);
  T* results = data<T>(out[0]);
  const int64_t num_terms = num_elements(in[0]) / num_results;
  const float divisor = is_mean ? static_cast<float>(num_terms) : 1.0f;
  if (num_terms == 0) {
    if (team->worker == 0) {
      for (int64_t i = 0; i < num_results; ++i) store(results + i, set1(Op::kNeutral / divisor), 1);
    }
    return;
  }
  const Reduction reduction = reduction_of(in[0], attrs[0].list + 1, attrs[0].list[0]);
  if (!reduction.is_inner_reduced) {
    const ReducedColumns<Op, T> items(reduction, x);
    if (items.num_blocks == 1) {
      reduce_short_columns<Op, T>(items, results, divisor, team);
    } else {
      reduce_items<Op>(items, results, static_cast<double>(divisor), team);
    }
  } else if (reduction.num_reduced == 1 && reduction.inner <= kFloat32BlockSize) {
    reduce_short_rows<Op, T>(x, reduction.num_kept, reduction.inner, results, divisor, team);
  } else {
    reduce_items<Op>(ReducedRows<Op, T>(reduction, x), results, static_cast<double>(divisor), team);
  }
}

template <class T>
void sum(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  reduce_dims<Sum, T>(in, out, attrs, team);
}

template <class T>
void mean(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  reduce_dims<Sum, T>(in, out, attrs, team, true);
}

template <class T>
void prod(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  reduce_dims<Prod, T>(in, out, attrs, team);
}

template <class T>
void max(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  reduce_dims<Max, T>(in, out, attrs, team);
}

template <class T>
void min(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  reduce_dims<Min, T>(in, out, attrs, team);
}

// For each of n neighbours, the index of the largest of `count` elements `stride` apart, the lowest on ties.
template <class T>
AETHER_INLINE void argmax_of_columns(const T* x, int64_t count, int64_t stride, int64_t n, int32_t* out) {
  float best[kColumnsPerItem];
  int32_t index[kColumnsPerItem] = {};
  for (int64_t c = 0; c < n; c += kLanes) store(best + c, load_lanes(x + c, smaller(n - c, kLanes)));
  for (int64_t r = 1; r < count; ++r) {
    const T* row = x + r * stride;
    for (int64_t c = 0; c < n; c += kLanes) {
      const Vec value = load_lanes(row + c, smaller(n - c, kLanes));
      const uint32_t larger_lanes = greater_mask(value, load(best + c));
      if (larger_lanes == 0) continue;
      store(best + c, AETHER_ISA::max(load(best + c), value));
      for (uint32_t left = larger_lanes; left; left &= left - 1)
        index[c + __builtin_ctz(left)] = static_cast<int32_t>(r);
    }
  }
  std::memcpy(out, index, static_cast<size_t>(n) * sizeof(int32_t));
}

// Index of the largest element, the lowest on ties.
template <class T>
void argmax(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  if (num_elements(out[0]) == 0) return;
  const Reduction reduction = reduction_of(in[0], &attrs[0].i, 1);
  const T* x = data<const T>(in[0]);
  int32_t* results = data<int32_t>(out[0]);
  const int64_t inner = reduction.inner;
  if (reduction.is_inner_reduced) {
    const Range rows = share(team, reduction.num_kept, kLanes);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const T* row = x + r * inner;
      results[r] = static_cast<int32_t>(first_not_less(row, inner, max_of_row(row, inner)));
    }
    return;
  }
  const int64_t chunks = ceil_div(inner, kColumnsPerItem);
  const Range items = share(team, reduction.num_kept * chunks);
  for (int64_t item = items.begin; item < items.end; ++item) {
    const int64_t first = item % chunks * kColumnsPerItem, n = smaller(kColumnsPerItem, inner - first);
    const int64_t offset = Position<1>(reduction.kept, item / chunks).offset[0] + first;
    argmax_of_columns(x + offset, reduction.num_reduced, inner, n, results + item / chunks * inner + first);
  }
}

}  // namespace aether::cpu::AETHER_ISA
