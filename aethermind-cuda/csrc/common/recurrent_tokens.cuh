// The tokens of a scan (see `recurrent_scan.cuh`) on their way to shared memory.
#pragma once

#include "common/async_copy.cuh"
#include "common/memory.cuh"
#include "common/recurrent_inputs.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kScanWarps = 4;
constexpr int kScanThreads = kScanWarps * kWarpSize;
constexpr int kWarpColumns = 8;
constexpr int kBlockColumns = kScanWarps * kWarpColumns;
constexpr int kBatchTokens = kScanWarps;
constexpr int kStagedBatches = 3;  // a warp may be in one, another copy to the next but one

// Factors of a token. With the delta rule u = values + update · Sᵀ k, where `values` are beta · v; else update ·
// values. The second term of `out` is direct · u with the delta rule, else direct · values, which includes skip · v.
struct alignas(16) TokenFactors {
  float decay;
  float update;
  float direct;
};

// The inputs of a token that the threads of a block share; rows from `depth` on are zero.
template <int kDepth>
struct alignas(16) StagedToken {
  float key[kDepth];
  float query[kDepth];
  float values[kBlockColumns];
  TokenFactors factors;
};

// A token as it is in memory, and its scalars by `prepare_scan`. Each lane of a warp copies 8 bytes from `values` on.
template <class T, int kDepth>
struct alignas(16) CopiedToken {
  static constexpr int kBytesPerLane = 8;
  T key[kDepth];
  T query[kDepth];
  T values[kBlockColumns];
  GroupScalars of_group;
  HeadScalars of_head;
  unsigned char
      zeros[kBytesPerLane * kWarpSize - kBlockColumns * sizeof(T) - sizeof(GroupScalars) - sizeof(HeadScalars)];
};

// A token as a warp has it in registers.
template <class T, bool kIsDelta, int kDepth>
struct LoadedToken {
  LaneElements<T, kDepth> key;
  LaneElements<T, kDepth> query;
  T value;  // of this lane's column
  GroupScalars of_group;
  HeadScalars of_head;

  __device__ __forceinline__ void stage(StagedToken<kDepth>& token, float skip) const {
    const float decay = of_head.decay, beta = of_head.beta, product = of_group.key_query;
    key.store_scaled(token.key, of_group.key_factor);
    query.store_scaled(token.query, of_group.query_factor);
    token.values[lane_index()] = kIsDelta ? beta * to_float(value) : to_float(value);
    if (lane_index() == 0) {
      token.factors = {decay, kIsDelta ? -beta * decay : beta, kIsDelta ? product : fmaf(product, beta, skip)};
    }
  }
};

// The inputs of a head and a block's columns. A warp takes every kBatchTokens-th token.
template <class T, bool kIsDelta, int kDepth>
struct HeadInputs {
  using Elements = LaneElements<T, kDepth>;
  using Loaded = LoadedToken<T, kIsDelta, kDepth>;
  const RecurrentScan& call;
  const RowLayout<T, kIsDelta> layout;
  const int head;
  const int group;
  const int column;  // the block's first
  const float skip;

  __device__ __forceinline__ HeadInputs(const RecurrentScan& call, int head, int column)
      : call(call),
        layout(call),
        head(head),
        group(head / (call.num_heads / call.num_groups)),
        column(column),
        skip(kIsDelta ? 0.0f : call.skip[head]) {}

  __device__ __forceinline__ const T* row_of(int token) const {
    return static_cast<const T*>(call.rows) + static_cast<int64_t>(token) * layout.row_size;
  }
  __device__ __forceinline__ int key() const { return layout.keys + group * call.depth; }
  __device__ __forceinline__ int query() const { return layout.queries + group * call.depth; }
  __device__ __forceinline__ int value() const { return layout.values + head * call.width + column; }

  // A token with the scalars that the warp computes.
  __device__ __forceinline__ Loaded load(int token) const {
    const T* row = row_of(token);
    const int64_t scalar = static_cast<int64_t>(token) * call.num_heads + head;
    const int first = Elements::first_of(0);
    Loaded loaded{};
    loaded.key = Elements::load(row + key() + first, call.depth, layout.is_wide);
    loaded.query = Elements::load(row + query() + first, call.depth, layout.is_wide);
    if (column + lane_index() < call.width) {
      loaded.value = row[value() + lane_index()];
    }
    const float step = to_float(static_cast<const T*>(call.steps)[scalar]);
    const float gate = kIsDelta ? to_float(static_cast<const T*>(call.gates)[scalar]) : 0.0f;
    loaded.of_head = head_scalars_of<kIsDelta>(call, head, step, gate);
    loaded.of_group = group_scalars_of<kIsDelta>(call, loaded.key, loaded.query);
    return loaded;
  }
};

// Copies a warp's tokens one after another, after `prepare_scan`. Runs of four elements must be aligned. No instruction
// depends on a branch, so that the compiler may place them among others: after the last token, that is copied again.
template <class T, bool kIsDelta, int kDepth>
class TokenCopies {
 public:
  __device__ __forceinline__ TokenCopies(const HeadInputs<T, kIsDelta, kDepth>& inputs, CopiedToken<T, kDepth>& copied,
                                         int begin, int end)
      : copied_(copied), depth_(inputs.call.depth), skip_(inputs.skip) {
    const RecurrentScan& call = inputs.call;
    const int last = end - 1;
    int token = begin + warp_index();
    token = token < last ? token : last;
    steps_ = (last - token) / kBatchTokens;
    const T* row = inputs.row_of(token);
    row_step_ = kBatchTokens * inputs.layout.row_size;
    keys_ = row + inputs.key() + Elements::first_of(0);
    queries_from_keys_ = inputs.layout.queries - inputs.layout.keys;
    const int value = lane_index() * kLaneValues, scalars = lane_index() - kBlockColumns / kLaneValues;
    const void* lane_source = row + inputs.value() + value;
    lane_step_ = row_step_ * static_cast<int>(sizeof(T));
    is_lane_present_ = inputs.column + value < call.width;
    if (scalars >= 0) {
      const int64_t group = static_cast<int64_t>(token) * call.num_groups + inputs.group;
      const int64_t head = static_cast<int64_t>(token) * call.num_heads + inputs.head;
      const auto* of_group = reinterpret_cast<const unsigned char*>(call.group_scalars + group);
      const bool is_of_head = scalars == 2;
      lane_source = is_of_head ? static_cast<const void*>(call.head_scalars + head) : of_group + scalars * kLaneBytes;
      lane_step_ = kBatchTokens * static_cast<int>(is_of_head ? call.num_heads * sizeof(HeadScalars)
                                                              : call.num_groups * sizeof(GroupScalars));
      is_lane_present_ = scalars <= 2;
    }
    lane_source_ = is_lane_present_ ? static_cast<const unsigned char*>(lane_source)
                                    : reinterpret_cast<const unsigned char*>(call.rows);
    lane_step_ = is_lane_present_ ? lane_step_ : 0;
    copy();
  }

  // Loads the token to registers when it is copied.
  __device__ __forceinline__ void load() {
    wait_for_copies<0>();
    __syncwarp();
    const T* key = copied_.key + Elements::first_of(0);
    loaded_.key = Elements::load(key, kDepth, true);
    loaded_.query = Elements::load(key + kDepth, kDepth, true);
    loaded_.value = copied_.values[lane_index()];
    loaded_.of_group = copied_.of_group;
    loaded_.of_head = copied_.of_head;
  }

  // Writes the loaded token to `token`, and begins to copy the next.
  __device__ __forceinline__ void stage(StagedToken<kDepth>& token) {
    loaded_.stage(token, skip_);
    __syncwarp();
    keys_ += steps_ > 0 ? row_step_ : 0;
    lane_source_ += steps_ > 0 ? lane_step_ : 0;
    steps_ -= 1;
    copy();
  }

 private:
  using Elements = LaneElements<T, kDepth>;
  static constexpr int kRunBytes = Elements::kRun * sizeof(T);
  static constexpr int kLaneBytes = CopiedToken<T, kDepth>::kBytesPerLane;
  static constexpr int kLaneValues = kLaneBytes / sizeof(T);
  static_assert(sizeof(CopiedToken<T, kDepth>) == 2 * kDepth * sizeof(T) + kLaneBytes * kWarpSize);
  static_assert(sizeof(GroupScalars) == 2 * kLaneBytes && sizeof(HeadScalars) == kLaneBytes);

  __device__ __forceinline__ void copy() {
#pragma unroll
    for (int i = 0; i < Elements::kRuns; ++i) {
      const int run = Elements::first_of(i);
      const T* source = keys_ + i * Elements::kRun * kWarpSize;
      copy_async<kRunBytes>(copied_.key + run, source, run < depth_);
      copy_async<kRunBytes>(copied_.query + run, source + queries_from_keys_, run < depth_);
    }
    auto* lane = reinterpret_cast<unsigned char*>(copied_.values) + lane_index() * kLaneBytes;
    copy_async<kLaneBytes>(lane, lane_source_, is_lane_present_);
    commit_copies();
  }

  CopiedToken<T, kDepth>& copied_;
  int depth_;
  float skip_;
  int steps_;  // how often there is a next token
  int row_step_;
  int lane_step_;
  int queries_from_keys_;
  bool is_lane_present_;
  const T* keys_;
  const unsigned char* lane_source_;
  LoadedToken<T, kIsDelta, kDepth> loaded_{};
};

}  // namespace aether
