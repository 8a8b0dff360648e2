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
// any batch and in any division into steps. While tokens of a batch in shared memory are taken up, those of the next
// are loaded to registers.
#pragma once

#include "common/memory.cuh"
#include "common/reduce.cuh"
#include "common/state_slots.cuh"
#include "common/types.cuh"

namespace aether {

// The layout of `_RecurrentScan` in kernels/recurrent.py. T tokens, H heads, G groups of heads that share q and k.
struct RecurrentScan {
  void* out;             // [T, H, width]
  float* state;          // [N, H, depth, width], updated in place
  const void* rows;      // [T, 2 G depth + H width]: q, k, v of the delta rule; v, k, q of ssd_scan
  const void* steps;     // [T, H]
  const void* gates;     // [T, H], of the delta rule
  const float* a_log;    // [H]
  const float* dt_bias;  // [H]
  const float* skip;     // [H], of ssd_scan
  StateSlots sequences;
  int num_heads;
  int num_groups;
  int depth;
  int width;
  float scale;  // of the delta rule's queries
  float eps;    // of the delta rule's norms
  float dt_min;
  float dt_max;  // 0: no maximum
};

constexpr int kScanWarps = 4;
constexpr int kScanThreads = kScanWarps * kWarpSize;
constexpr int kWarpColumns = 8;
constexpr int kBlockColumns = kScanWarps * kWarpColumns;
constexpr int kStagedTokens = 8;  // those of a batch
constexpr int kThreadColumns = 2;
constexpr int kColumnLanes = kWarpColumns / kThreadColumns;  // lanes side by side
constexpr int kRowGroups = kWarpSize / kColumnLanes;         // groups of lanes, each with other rows

// What the threads of a block need of a token; rows from `depth` on are zero.
template <int kDepth>
struct alignas(16) StagedToken {
  float key[kDepth];
  float query[kDepth];
  float values[kBlockColumns];
  float decay;
  float beta;
  float key_query;
};

// ln(1 + e^x).
__device__ __forceinline__ float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

// A token as a warp loads it, lanes side by side; unused elements are zero.
template <class T, int kDepth>
struct LoadedToken {
  T key[kDepth / kWarpSize];
  T query[kDepth / kWarpSize];
  T value;
  T step;
  T gate;
};

// A head's part of the inputs: a block's columns of values, and this lane's elements.
template <class T, bool kIsDelta, int kDepth>
struct HeadInputs {
  const RecurrentScan& call;
  const T* keys;
  const T* queries;
  const T* values;
  const T* steps;
  const T* gates;
  int row_size;
  bool has_value;
  float dt_bias;
  float rate;

  __device__ __forceinline__ HeadInputs(const RecurrentScan& call, int head, int first_column)
      : call(call), has_value(first_column + lane_index() < call.width) {
    const int group = head / (call.num_heads / call.num_groups) * call.depth;
    const int all_groups = call.num_groups * call.depth, all_heads = call.num_heads * call.width;
    const T* row = static_cast<const T*>(call.rows) + lane_index();
    keys = row + (kIsDelta ? all_groups : all_heads) + group;
    queries = row + (kIsDelta ? 0 : all_heads + all_groups) + group;
    values = row + (kIsDelta ? 2 * all_groups : 0) + head * call.width + first_column;
    steps = static_cast<const T*>(call.steps) + head;
    gates = static_cast<const T*>(call.gates) + head;
    row_size = 2 * all_groups + all_heads;
    dt_bias = call.dt_bias[head];
    rate = expf(call.a_log[head]);
  }

  __device__ __forceinline__ LoadedToken<T, kDepth> load(int token) const {
    const int64_t row = static_cast<int64_t>(token) * row_size;
    const int64_t scalar = static_cast<int64_t>(token) * call.num_heads;
    const T zero = from_float<T>(0.0f);
    LoadedToken<T, kDepth> loaded;
#pragma unroll
    for (int i = 0; i < kDepth / kWarpSize; ++i) {
      const bool is_inside = i * kWarpSize + lane_index() < call.depth;
      loaded.key[i] = is_inside ? keys[row + i * kWarpSize] : zero;
      loaded.query[i] = is_inside ? queries[row + i * kWarpSize] : zero;
    }
    loaded.value = has_value ? values[row] : zero;
    loaded.step = steps[scalar];
    loaded.gate = kIsDelta ? gates[scalar] : zero;
    return loaded;
  }

  // Writes a token to shared memory; the warp's lanes are all here.
  __device__ __forceinline__ void stage(const LoadedToken<T, kDepth>& loaded, StagedToken<kDepth>& token) const {
    float key_factor = 1.0f, query_factor = 1.0f;
    if constexpr (kIsDelta) {
      float key_squares = 0.0f, query_squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kDepth / kWarpSize; ++i) {
        const float key = to_float(loaded.key[i]), query = to_float(loaded.query[i]);
        key_squares += key * key;
        query_squares += query * query;
      }
      key_factor = rsqrtf(warp_reduce<Sum>(key_squares) + call.eps);
      query_factor = rsqrtf(warp_reduce<Sum>(query_squares) + call.eps) * call.scale;
    }
    float key_query = 0.0f;
#pragma unroll
    for (int i = 0; i < kDepth / kWarpSize; ++i) {
      const float key = to_float(loaded.key[i]) * key_factor, query = to_float(loaded.query[i]) * query_factor;
      token.key[i * kWarpSize + lane_index()] = key;
      token.query[i * kWarpSize + lane_index()] = query;
      key_query += key * query;
    }
    key_query = warp_reduce<Sum>(key_query);
    token.values[lane_index()] = to_float(loaded.value);
    float step = softplus(to_float(loaded.step) + dt_bias);
    if constexpr (!kIsDelta) {
      step = fmaxf(step, call.dt_min);
      step = call.dt_max > 0.0f ? fminf(step, call.dt_max) : step;
    }
    if (lane_index() == 0) {
      token.decay = expf(-rate * step);
      token.beta = kIsDelta ? 1.0f / (1.0f + expf(-to_float(loaded.gate))) : step;
      token.key_query = key_query;
    }
  }
};

// Sums each of kCount values over the row groups of a warp. A lane returns that of index
// lane % 32 / (32 / kCount); lanes that differ in other bits only return the same.
template <int kCount>
__device__ __forceinline__ float sum_of_row_groups(float (&values)[kCount]) {
  int count = kCount;
#pragma unroll
  for (int distance = kWarpSize / 2; distance >= kColumnLanes; distance /= 2) {
    if (count == 1) {
      values[0] += __shfl_xor_sync(kFullWarp, values[0], distance);
      continue;
    }
    count /= 2;
    const bool is_upper = (lane_index() & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i < count) {
        const float kept = is_upper ? values[i + count] : values[i];
        const float sent = is_upper ? values[i] : values[i + count];
        values[i] = kept + __shfl_xor_sync(kFullWarp, sent, distance);
      }
    }
  }
  return values[0];
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
      : column(first_column + warp_index() * kWarpColumns + lane_index() % kColumnLanes * kThreadColumns),
        first_row(lane_index() / kColumnLanes * kRun) {}

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

  // From and to a matrix of this depth and width; elements outside of it are zero, and are not written. `is_whole`: the
  // block has none of these.
  __device__ __forceinline__ void load(const float* matrix, int depth, int width, bool is_whole) {
    const float* first = matrix + static_cast<int64_t>(first_row) * width + column;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float* row = first + static_cast<int64_t>(row_of(i) - first_row) * width;
      if (is_whole) {
        const auto columns = Columns::load(row);
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          values[i][c] = columns.values[c];
        }
      } else {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          values[i][c] = row_of(i) < depth && column + c < width ? row[c] : 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ void store(float* matrix, int depth, int width, bool is_whole) const {
    float* first = matrix + static_cast<int64_t>(first_row) * width + column;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float* row = first + static_cast<int64_t>(row_of(i) - first_row) * width;
      if (is_whole) {
        Columns columns;
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          columns.values[c] = values[i][c];
        }
        columns.store(row);
      } else {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          if (row_of(i) < depth && column + c < width) {
            row[c] = values[i][c];
          }
        }
      }
    }
  }

  // Takes up a token. Lanes that `has_result` return the result of `result_column()`.
  template <bool kIsDelta>
  __device__ __forceinline__ float take_up(const StagedToken<kDepth>& token, float skip) {
    float sums[2 * kThreadColumns] = {};  // Sᵀ k, then Sᵀ q
#pragma unroll
    for (int i = 0; i < kRows; i += kRun) {
      const auto key = Vector<float, kRun>::load(token.key + row_of(i));
      const auto query = Vector<float, kRun>::load(token.query + row_of(i));
#pragma unroll
      for (int r = 0; r < kRun; ++r) {
#pragma unroll
        for (int c = 0; c < kThreadColumns; ++c) {
          sums[c] = fmaf(key.values[r], values[i + r][c], sums[c]);
          sums[kThreadColumns + c] = fmaf(query.values[r], values[i + r][c], sums[kThreadColumns + c]);
        }
      }
    }
    const float sum = sum_of_row_groups(sums);
    const float decay = token.decay;
    const int column_in_block = warp_index() * kWarpColumns + lane_index() % kColumnLanes * kThreadColumns;
    float updates[kThreadColumns], own_update = 0.0f, own_value = 0.0f;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const float value = token.values[column_in_block + c];
      float rest = value;
      if constexpr (kIsDelta) {
        const int source = c * kLanesOfColumn + lane_index() % kColumnLanes;
        rest -= decay * __shfl_sync(kFullWarp, sum, source);
      }
      updates[c] = token.beta * rest;
      own_update = c == column_index() ? updates[c] : own_update;
      own_value = c == column_index() ? value : own_value;
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
    return fmaf(decay, sum, fmaf(token.key_query, own_update, skip * own_value));
  }

  // The upper half warp has the results (see `sum_of_row_groups`), each column in two lanes.
  static constexpr int kLanesOfColumn = kWarpSize / (2 * kThreadColumns);
  __device__ __forceinline__ static int column_index() { return lane_index() % (kWarpSize / 2) / kLanesOfColumn; }
  __device__ __forceinline__ static bool has_result() {
    return lane_index() >= kWarpSize / 2 && (lane_index() & kColumnLanes) == 0;
  }
  __device__ __forceinline__ int result_column() const { return column + column_index(); }
};

// A block of kScanThreads threads, with StagedToken<kDepth>[2 · kStagedTokens] of dynamic shared memory: sequence
// blockIdx.y, and blockIdx.x is a head by blocks of columns.
template <class T, bool kIsDelta, int kDepth>
__device__ __forceinline__ void recurrent_scan(const RecurrentScan& call) {
  AETHER_DYNAMIC_SHARED(StagedToken<kDepth>, staged);  // [2][kStagedTokens]
  constexpr int kWarpTokens = kStagedTokens / kScanWarps;
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
  LoadedToken<T, kDepth> loaded[kWarpTokens];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const int token = first + i * kScanWarps + warp_index();
      if (token < sequence.end) {
        loaded[i] = inputs.load(token);
      }
    }
  };
  const auto stage = [&](int first, StagedToken<kDepth>* tokens) {
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      const int index = i * kScanWarps + warp_index();
      if (first + index < sequence.end) {
        inputs.stage(loaded[i], tokens[index]);
      }
    }
  };
  load(sequence.begin);
  stage(sequence.begin, staged);
  __syncthreads();
  int current = 0;  // the batch that is taken up: 0 or kStagedTokens
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

// Entry points of an operator for a dtype, by the largest depth of states; `blocks` of them run on a multiprocessor.
#define AETHER_RECURRENT_SCAN_OF(name, is_delta, depth, blocks, dtype)                                             \
  extern "C" __global__ void __launch_bounds__(128, blocks) name##_##depth##_##dtype(aether::RecurrentScan call) { \
    aether::begin_kernel();                                                                                        \
    aether::recurrent_scan<aether::dtype, is_delta, depth>(call);                                                  \
  }
#define AETHER_RECURRENT_SCAN(name, is_delta, dtype)      \
  AETHER_RECURRENT_SCAN_OF(name, is_delta, 128, 4, dtype) \
  AETHER_RECURRENT_SCAN_OF(name, is_delta, 256, 2, dtype)
