// A block's part of a state of a scan (see `recurrent_scan.cuh`), in registers, and what it does with a token.
#pragma once

#include "common/recurrent_tokens.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kThreadColumns = 2;
constexpr int kColumnLanes = kWarpColumns / kThreadColumns;  // lanes side by side
constexpr int kRowGroups = kWarpSize / kColumnLanes;         // groups of lanes, each with other rows

// Sums over the row groups of a warp; every lane gets the sum of its columns.
__device__ __forceinline__ float sum_of_row_groups(float value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance >= kColumnLanes; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

// Sums over the row groups of a warp of the results of a batch: each lane gets that of token `lane_token()` and column
// `lane_column()`. Sums have the order of `sum_of_row_groups`.
struct BatchResults {
  float values[kBatchTokens][kThreadColumns];

  __device__ __forceinline__ static int lane_token() { return lane_index() / (kWarpSize / kBatchTokens); }
  __device__ __forceinline__ static int lane_column() { return lane_index() / kColumnLanes % kThreadColumns; }

  __device__ __forceinline__ float sums() const {
    static_assert(kBatchTokens == 4 && kThreadColumns == 2 && kRowGroups == 8);
    float pairs[2][kThreadColumns], columns[kThreadColumns];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        pairs[i][c] = exchanged_sum(values[i][c], values[2 + i][c], 16);
      }
      columns[c] = exchanged_sum(pairs[0][c], pairs[1][c], 8);
    }
    return exchanged_sum(columns[0], columns[1], 4);
  }

 private:
  // The sum over this lane and the one at `distance`: of `lower` in the lower one, of `upper` in the other.
  __device__ __forceinline__ static float exchanged_sum(float lower, float upper, int distance) {
    const bool is_upper = (lane_index() & distance) != 0;
    return (is_upper ? upper : lower) + __shfl_xor_sync(kFullWarp, is_upper ? lower : upper, distance);
  }
};

// A thread's part of a state: kThreadColumns columns of every row of its group. Rows are in runs of four, by group in
// turn, so that a warp reads the key from shared memory without bank conflicts.
// `kLoadsAhead`: tokens are loaded to registers while the one before is processed.
template <bool kIsDelta, bool kLoadsAhead, int kDepth>
struct StateTile {
  static constexpr bool kIsAhead = kLoadsAhead;
  static constexpr int kRows = kDepth / kRowGroups;
  static constexpr int kRun = 4;
  static_assert(kRows % kRun == 0);
  using Columns = Vector<float, kThreadColumns>;

  float values[kRows][kThreadColumns];
  int column;  // the first one, of the state
  int first_row;

  __device__ __forceinline__ explicit StateTile(int first_column)
      : column(first_column + column_in_block()), first_row(lane_index() / kColumnLanes * kRun) {}

  __device__ __forceinline__ int row_of(int i) const { return i / kRun * (kRun * kRowGroups) + first_row + i % kRun; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        values[i][c] = 0.0f;
      }
    }
  }

  // Loads from and stores to a matrix of this depth and width. Elements outside of the matrix are zero, and are not
  // stored. `is_whole`: the block has no such elements.
  __device__ __forceinline__ void load(const float* matrix, int depth, int width, bool is_whole) {
    if (is_whole) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const auto columns = Columns::load(matrix + offset_of(i, width));
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          values[i][c] = columns.values[c];
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        const bool is_inside = row_of(i) < depth && column + c < width;
        values[i][c] = is_inside ? matrix[offset_of(i, width) + c] : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void store(float* matrix, int depth, int width, bool is_whole) const {
    if (is_whole) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Columns columns;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          columns.values[c] = values[i][c];
        }
        columns.store(matrix + offset_of(i, width));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        if (row_of(i) < depth && column + c < width) {
          matrix[offset_of(i, width) + c] = values[i][c];
        }
      }
    }
  }

  __device__ __forceinline__ int offset_of(int i, int width) const {
    return first_row * width + column + (row_of(i) - first_row) * width;
  }

  // The thread's rows of a key or a query in shared memory.
  struct Rows {
    float values[kRows];
  };
  __device__ __forceinline__ Rows rows_of(const float* elements) const {
    Rows rows;
#pragma unroll
    for (int i = 0; i < kRows; i += kRun) {
      const auto run = Vector<float, kRun>::load(elements + row_of(i));
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
        rows.values[i + r] = run.values[r];
      }
    }
    return rows;
  }

  // A token as a thread needs it: its rows of the key and the query, and its columns.
  struct Token {
    Rows key;
    Rows query;
    Columns columns;
    Vector<float, 4> factors;
  };
  __device__ __forceinline__ Token token_of(const StagedToken<kDepth>& token) const {
    return {rows_of(token.key), rows_of(token.query), Columns::load(token.values + column_in_block()),
            Vector<float, 4>::load(&token.factors.decay)};
  }

  // Processes a token. `results` are what this thread's rows contribute to its results. What does not depend on Sᵀ k is
  // done while its sums over lanes are under way; with `kLoadsAhead`, that includes loading `next` to `token`.
  __device__ __forceinline__ void take_up(Token& token, const StagedToken<kDepth>& staged,
                                          const StagedToken<kDepth>& next, float (&results)[kThreadColumns]) {
    if constexpr (!kLoadsAhead) {
      token = token_of(staged);
    }
    const float decay = token.factors.values[0], update = token.factors.values[1];
    const float direct = first_row == 0 ? token.factors.values[2] : 0.0f;  // one row group adds the second term
    const Columns columns = token.columns;
    float updates[kThreadColumns];
    if constexpr (kIsDelta) {
      product(token.key, updates);
    }
    Token upcoming;
    if constexpr (kLoadsAhead) {
      upcoming.key = rows_of(next.key);
      upcoming.factors = Vector<float, 4>::load(&next.factors.decay);
      upcoming.columns = Columns::load(next.values + column_in_block());
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        values[i][c] *= decay;
      }
    }
    product(token.query, results);
    if constexpr (kLoadsAhead) {
      upcoming.query = rows_of(next.query);
    }
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      if constexpr (kIsDelta) {
        updates[c] = fmaf(update, sum_of_row_groups(updates[c]), columns.values[c]);
      } else {
        updates[c] = update * columns.values[c];
      }
      results[c] = fmaf(direct, kIsDelta ? updates[c] : columns.values[c], results[c]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        values[i][c] = fmaf(token.key.values[i], updates[c], values[i][c]);
      }
    }
    if constexpr (kLoadsAhead) {
      token = upcoming;
    }
  }

  // The products of rows with the columns; sums of even and of odd rows, which halves the latency.
  __device__ __forceinline__ void product(const Rows& rows, float (&products)[kThreadColumns]) const {
    float sums[2][kThreadColumns] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        sums[i % 2][c] = fmaf(rows.values[i], values[i][c], sums[i % 2][c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      products[c] = sums[0][c] + sums[1][c];
    }
  }

  __device__ __forceinline__ static int column_in_block() {
    return warp_index() * kWarpColumns + lane_index() % kColumnLanes * kThreadColumns;
  }
};

}  // namespace aether
