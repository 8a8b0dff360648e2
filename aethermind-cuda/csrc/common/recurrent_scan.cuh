// Linear recurrences whose state is a float32 matrix S [depth, width] per head: gated_delta_rule and ssd_scan. For each
// token with query q and key k [depth], value v [width], and scalars decay and beta:
//
//     u = beta · v, or with the delta rule beta · (v - decay · Sᵀ k)
//     out = decay · Sᵀ q + (k · q) u + skip · v        S = decay · S + k uᵀ
//
// which is Sᵀ q of the new state, written such that both products read the old one and are reduced at once.
//
// A block computes kBlockColumns columns of a head for all tokens of a sequence, one by one. Its part of the state is
// in registers from the first token to the last, so it is read and written once, and a sequence gets the same bits in
// any batch and in any division into steps. While the tokens of a batch in shared memory are processed, those of the
// next are loaded to registers.
#pragma once

#include "common/memory.cuh"
#include "common/recurrent_inputs.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kScanWarps = 4;
constexpr int kScanThreads = kScanWarps * kWarpSize;
constexpr int kWarpColumns = 8;
constexpr int kBlockColumns = kScanWarps * kWarpColumns;
constexpr int kStagedTokens = kScanWarps;  // those of a batch
constexpr int kThreadColumns = 2;
constexpr int kColumnLanes = kWarpColumns / kThreadColumns;  // lanes side by side
constexpr int kRowGroups = kWarpSize / kColumnLanes;         // groups of lanes, each with other rows

// The inputs of a token that the threads of a block share; rows from `depth` on are zero.
template <int kDepth>
struct alignas(16) StagedToken {
  float key[kDepth];
  float query[kDepth];
  float values[kBlockColumns];
  float decay;
  float beta;
  float key_query;
};

// A token as a warp loads it; scalars are those of `prepare_scan`, or the inputs that they are computed from.
template <class T, int kDepth>
struct LoadedToken {
  LaneElements<T, kDepth> key;
  LaneElements<T, kDepth> query;
  T value;
  T step;
  T gate;
  GroupScalars group_scalars;
  HeadScalars head_scalars;
};

// A head's part of the inputs, and a block's columns of its values.
template <class T, bool kIsDelta, int kDepth>
struct HeadInputs {
  const RecurrentScan& call;
  const RowLayout<T, kIsDelta> layout;
  int head;
  int group;
  int column;  // this lane's

  __device__ __forceinline__ HeadInputs(const RecurrentScan& call, int head, int first_column)
      : call(call),
        layout(call),
        head(head),
        group(head / (call.num_heads / call.num_groups)),
        column(first_column + lane_index()) {}

  __device__ __forceinline__ bool is_prepared() const { return call.group_scalars != nullptr; }

  __device__ __forceinline__ LoadedToken<T, kDepth> load(int token) const {
    using Elements = LaneElements<T, kDepth>;
    const T* row = static_cast<const T*>(call.rows) + static_cast<int64_t>(token) * layout.row_size;
    const int64_t scalar = static_cast<int64_t>(token) * call.num_heads + head;
    LoadedToken<T, kDepth> loaded{};
    loaded.key = Elements::load(row + layout.keys + group * call.depth, call.depth, layout.is_wide);
    loaded.query = Elements::load(row + layout.queries + group * call.depth, call.depth, layout.is_wide);
    if (column < call.width) {
      loaded.value = row[layout.values + head * call.width + column];
    }
    if (is_prepared()) {
      loaded.group_scalars = call.group_scalars[static_cast<int64_t>(token) * call.num_groups + group];
      loaded.head_scalars = call.head_scalars[scalar];
    } else {
      loaded.step = static_cast<const T*>(call.steps)[scalar];
      if constexpr (kIsDelta) {
        loaded.gate = static_cast<const T*>(call.gates)[scalar];
      }
    }
    return loaded;
  }

  // Writes a token to shared memory; all lanes of the warp must call it.
  __device__ __forceinline__ void stage(const LoadedToken<T, kDepth>& loaded, StagedToken<kDepth>& token) const {
    GroupScalars of_group = loaded.group_scalars;
    HeadScalars of_head = loaded.head_scalars;
    if (!is_prepared()) {
      of_group = group_scalars_of<kIsDelta>(call, loaded.key, loaded.query);
      of_head = head_scalars_of<kIsDelta>(call, head, to_float(loaded.step), to_float(loaded.gate));
    }
    loaded.key.store_scaled(token.key, of_group.key_factor);
    loaded.query.store_scaled(token.query, of_group.query_factor);
    token.values[lane_index()] = to_float(loaded.value);
    if (lane_index() == 0) {
      token.decay = of_head.decay;
      token.beta = of_head.beta;
      token.key_query = of_group.key_query;
    }
  }
};

// Sums over the row groups of a warp; every lane gets the sum of its columns.
__device__ __forceinline__ float sum_of_row_groups(float value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance >= kColumnLanes; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

// Sums two values over the row groups of a warp: the lower half warp gets the first sum, the upper half the second.
__device__ __forceinline__ float sums_of_row_groups(float first, float second) {
  const bool is_upper = lane_index() >= kWarpSize / 2;
  float sum = (is_upper ? second : first) + __shfl_xor_sync(kFullWarp, is_upper ? first : second, kWarpSize / 2);
#pragma unroll
  for (int distance = kWarpSize / 4; distance >= kColumnLanes; distance /= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, distance);
  }
  return sum;
}

// A thread's part of a state: kThreadColumns columns of every row of its group. Rows are in runs of four, by group in
// turn, so that a warp reads the key from shared memory without bank conflicts.
template <int kDepth>
struct StateTile {
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

  // Processes a token. Lanes that `has_result` return the result of `result_column()`.
  template <bool kIsDelta>
  __device__ __forceinline__ float take_up(const StagedToken<kDepth>& token, float skip) {
    float predicted[kThreadColumns] = {}, results[kThreadColumns] = {};  // Sᵀ k and Sᵀ q
#pragma unroll
    for (int i = 0; i < kRows; i += kRun) {
      const auto key = Vector<float, kRun>::load(token.key + row_of(i));
      const auto query = Vector<float, kRun>::load(token.query + row_of(i));
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          if constexpr (kIsDelta) {
            predicted[c] = fmaf(key.values[r], values[i + r][c], predicted[c]);
          }
          results[c] = fmaf(query.values[r], values[i + r][c], results[c]);
        }
      }
    }
    const float decay = token.decay;
    const auto columns = Columns::load(token.values + column_in_block());
    float updates[kThreadColumns];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const float rest =
          kIsDelta ? fmaf(-decay, sum_of_row_groups(predicted[c]), columns.values[c]) : columns.values[c];
      updates[c] = token.beta * rest;
    }
#pragma unroll
    for (int i = 0; i < kRows; i += kRun) {
      const auto key = Vector<float, kRun>::load(token.key + row_of(i));
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          values[i + r][c] = fmaf(key.values[r], updates[c], decay * values[i + r][c]);
        }
      }
    }
    const int own = column_index();
    const float rest = fmaf(token.key_query, own == 0 ? updates[0] : updates[1],
                            skip * (own == 0 ? columns.values[0] : columns.values[1]));
    return fmaf(decay, sums_of_row_groups(results[0], results[1]), rest);
  }

  // Each half warp has the results of one column of a lane, in every row group.
  __device__ __forceinline__ static int column_index() { return lane_index() / (kWarpSize / kThreadColumns); }
  __device__ __forceinline__ static bool has_result() {
    return lane_index() % (kWarpSize / kThreadColumns) < kColumnLanes;
  }
  __device__ __forceinline__ int result_column() const { return column + column_index(); }
  __device__ __forceinline__ static int column_in_block() {
    return warp_index() * kWarpColumns + lane_index() % kColumnLanes * kThreadColumns;
  }
};

// A block of kScanThreads threads, with StagedToken<kDepth>[2 · kStagedTokens] of dynamic shared memory: sequence
// blockIdx.y, and blockIdx.x is a head by blocks of columns.
template <class T, bool kIsDelta, int kDepth>
__device__ __forceinline__ void recurrent_scan(const RecurrentScan& call) {
  AETHER_DYNAMIC_SHARED(StagedToken<kDepth>, staged);  // [2][kStagedTokens]
  const StateSequence sequence(call.sequences, static_cast<int>(blockIdx.y));
  if (sequence.begin == sequence.end) {
    return;
  }
  const int num_blocks = (call.width + kBlockColumns - 1) / kBlockColumns;
  const int head = static_cast<int>(blockIdx.x) / num_blocks;
  const int first_column = static_cast<int>(blockIdx.x) % num_blocks * kBlockColumns;
  float* matrix = call.state + (sequence.slot * call.num_heads + head) * call.depth * call.width;
  const bool is_whole = call.depth == kDepth && call.width % kBlockColumns == 0;
  StateTile<kDepth> tile(first_column);
  if (sequence.is_new) {
    tile.clear();
  } else {
    tile.load(matrix, call.depth, call.width, is_whole);
  }
  const HeadInputs<T, kIsDelta, kDepth> inputs(call, head, first_column);
  const float skip = kIsDelta ? 0.0f : call.skip[head];
  LoadedToken<T, kDepth> loaded;
  const auto load = [&](int first) {
    if (first + warp_index() < sequence.end) {
      loaded = inputs.load(first + warp_index());
    }
  };
  const auto stage = [&](int first, StagedToken<kDepth>* tokens) {
    if (first + warp_index() < sequence.end) {
      inputs.stage(loaded, tokens[warp_index()]);
    }
  };
  load(sequence.begin);
  stage(sequence.begin, staged);
  __syncthreads();
  int current = 0;  // the batch that is processed: 0 or kStagedTokens
  for (int first = sequence.begin; first < sequence.end; first += kStagedTokens) {
    const int next = first + kStagedTokens;
    load(next);
    const int count = next < sequence.end ? kStagedTokens : sequence.end - first;
    for (int i = 0; i < count; ++i) {
      const float result = tile.template take_up<kIsDelta>(staged[current + i], skip);
      if (tile.has_result() && tile.result_column() < call.width) {
        const int64_t row = static_cast<int64_t>(first + i) * call.num_heads + head;
        static_cast<T*>(call.out)[row * call.width + tile.result_column()] = from_float<T>(result);
      }
    }
    current ^= kStagedTokens;
    stage(next, staged + current);
    __syncthreads();
  }
  tile.store(matrix, call.depth, call.width, is_whole);
}

}  // namespace aether

// Entry points of an operator for a dtype: the scan by the largest depth of states, of which `blocks` run on a
// multiprocessor, and `prepare_scan`.
#define AETHER_RECURRENT_SCAN_OF(name, is_delta, depth, blocks, dtype)                                             \
  extern "C" __global__ void __launch_bounds__(128, blocks) name##_##depth##_##dtype(aether::RecurrentScan call) { \
    aether::begin_kernel();                                                                                        \
    aether::recurrent_scan<aether::dtype, is_delta, depth>(call);                                                  \
  }
#define AETHER_RECURRENT_SCAN(name, is_delta, dtype)                                       \
  AETHER_RECURRENT_SCAN_OF(name, is_delta, 128, sizeof(aether::dtype) == 4 ? 4 : 5, dtype) \
  AETHER_RECURRENT_SCAN_OF(name, is_delta, 256, 3, dtype)                                  \
  extern "C" __global__ void name##_prepare_##dtype(aether::RecurrentScan call) {          \
    aether::begin_kernel();                                                                \
    aether::prepare_scan<aether::dtype, is_delta, 256>(call);                              \
  }
