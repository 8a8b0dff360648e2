// The inputs of a linear recurrence (see `recurrent_scan.cuh`): the rows of a token, and the scalars that they give.
//
// Scalars are computed by the scan itself, or before it by `prepare_scan` for steps with many tokens of a sequence,
// where the scan would wait for their reductions. Both have the same bits.
#pragma once

#include "common/reduce.cuh"
#include "common/state_slots.cuh"
#include "common/types.cuh"

namespace aether {

// Scalars of a token and a group of heads: the factors of its key and of its query, and their dot product.
struct alignas(16) GroupScalars {
  float key_factor;
  float query_factor;
  float key_query;
};

// Scalars of a token and a head: the factors of the state and of the update.
struct alignas(8) HeadScalars {
  float decay;
  float beta;
};

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
  GroupScalars* group_scalars;  // [T, G], null where the scan computes them
  HeadScalars* head_scalars;    // [T, H], too
  int num_heads;
  int num_groups;
  int depth;
  int width;
  float scale;  // of the delta rule's queries
  float eps;    // of the delta rule's norms
  float dt_min;
  float dt_max;  // 0: no maximum
};

// ln(1 + e^x).
__device__ __forceinline__ float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

// A lane's elements of a key or a query: four in a row of every 128. Those from `depth` on are zero. They are words
// until they are used: the compiler would take elements apart where they are loaded, and wait for each load there.
template <class T, int kDepth>
struct LaneElements {
  static constexpr int kRun = 4;
  static constexpr int kRuns = kDepth / (kRun * kWarpSize);
  using Run = Vector<T, kRun>;
  using Words = Vector<uint32_t, sizeof(Run) / sizeof(uint32_t)>;
  Words words[kRuns];

  __device__ __forceinline__ static int first_of(int run) { return (run * kWarpSize + lane_index()) * kRun; }

  // `elements` is where the lane's first run is.
  __device__ __forceinline__ static LaneElements load(const T* elements, int depth, bool is_wide) {
    LaneElements loaded{};
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const T* source = elements + i * kRun * kWarpSize;
      if (is_wide) {
        if (first_of(i) < depth) {
          loaded.words[i] = Words::load(reinterpret_cast<const uint32_t*>(source));
        }
      } else {
        Run run;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          run.values[j] = first_of(i) + j < depth ? source[j] : from_float<T>(0.0f);
        }
        loaded.words[i] = reinterpret_cast<const Words&>(run);
      }
    }
    return loaded;
  }

  __device__ __forceinline__ Run run(int i) const { return reinterpret_cast<const Run&>(words[i]); }

  // The elements times a factor, to shared memory.
  __device__ __forceinline__ void store_scaled(float* target, float factor) const {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const Run own = run(i);
      Vector<float, kRun> scaled;
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        scaled.values[j] = to_float(own.values[j]) * factor;
      }
      scaled.store(target + first_of(i));
    }
  }

  __device__ __forceinline__ float dot(const LaneElements& other) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const Run a = run(i), b = other.run(i);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        sum = fmaf(to_float(a.values[j]), to_float(b.values[j]), sum);
      }
    }
    return sum;
  }
};

// Every lane of a warp gets the result.
template <bool kIsDelta, class T, int kDepth>
__device__ __forceinline__ GroupScalars group_scalars_of(const RecurrentScan& call, const LaneElements<T, kDepth>& key,
                                                         const LaneElements<T, kDepth>& query) {
  float product = key.dot(query);
  if constexpr (!kIsDelta) {
    return {1.0f, 1.0f, warp_reduce<Sum>(product)};
  }
  float key_squares = key.dot(key), query_squares = query.dot(query);
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {  // of all at once, which saves latency
    key_squares += __shfl_xor_sync(kFullWarp, key_squares, distance);
    query_squares += __shfl_xor_sync(kFullWarp, query_squares, distance);
    product += __shfl_xor_sync(kFullWarp, product, distance);
  }
  const float key_factor = rsqrtf(key_squares + call.eps);
  const float query_factor = rsqrtf(query_squares + call.eps) * call.scale;
  // If squares are infinite, the product may be infinite, too.
  const bool is_finite = key_factor > 0.0f && query_factor != 0.0f;
  return {key_factor, query_factor, is_finite ? product * key_factor * query_factor : 0.0f};
}

template <bool kIsDelta>
__device__ __forceinline__ HeadScalars head_scalars_of(const RecurrentScan& call, int head, float step, float gate) {
  step = softplus(step + call.dt_bias[head]);
  if constexpr (!kIsDelta) {
    step = fmaxf(step, call.dt_min);
    step = call.dt_max > 0.0f ? fminf(step, call.dt_max) : step;
  }
  const float decay = expf(-expf(call.a_log[head]) * step);
  return {decay, kIsDelta ? 1.0f / (1.0f + expf(-gate)) : step};
}

// The offsets of q, k and v in the row of a token.
template <class T, bool kIsDelta>
struct RowLayout {
  int row_size;
  int keys;
  int queries;
  int values;
  bool is_wide;  // runs of four elements of keys and queries are aligned

  __device__ __forceinline__ explicit RowLayout(const RecurrentScan& call) {
    const int groups = call.num_groups * call.depth, heads = call.num_heads * call.width;
    row_size = 2 * groups + heads;
    keys = kIsDelta ? groups : heads;
    queries = kIsDelta ? 0 : heads + groups;
    values = kIsDelta ? 2 * groups : 0;
    is_wide = call.depth % 4 == 0 && heads % 4 == 0 && reinterpret_cast<uintptr_t>(call.rows) % kVectorBytes == 0;
  }
};

// Writes the scalars of token blockIdx.x: a warp those of a group, a thread those of a head. Depths up to kDepth.
template <class T, bool kIsDelta, int kDepth>
__device__ __forceinline__ void prepare_scan(const RecurrentScan& call) {
  const RowLayout<T, kIsDelta> layout(call);
  const int64_t token = blockIdx.x;
  const T* row = static_cast<const T*>(call.rows) + token * layout.row_size;
  for (int group = warp_index(); group < call.num_groups; group += static_cast<int>(blockDim.x) / kWarpSize) {
    const int first = group * call.depth + LaneElements<T, kDepth>::first_of(0);
    const auto key = LaneElements<T, kDepth>::load(row + layout.keys + first, call.depth, layout.is_wide);
    const auto query = LaneElements<T, kDepth>::load(row + layout.queries + first, call.depth, layout.is_wide);
    const GroupScalars scalars = group_scalars_of<kIsDelta>(call, key, query);
    if (lane_index() == 0) {
      call.group_scalars[token * call.num_groups + group] = scalars;
    }
  }
  for (int head = static_cast<int>(threadIdx.x); head < call.num_heads; head += static_cast<int>(blockDim.x)) {
    const int64_t index = token * call.num_heads + head;
    const float step = to_float(static_cast<const T*>(call.steps)[index]);
    const float gate = kIsDelta ? to_float(static_cast<const T*>(call.gates)[index]) : 0.0f;
    call.head_scalars[index] = head_scalars_of<kIsDelta>(call, head, step, gate);
  }
}

}  // namespace aether
