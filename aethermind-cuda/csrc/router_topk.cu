// router_topk: the k experts of a token with the largest scores, and their weights. A warp computes a token.

#include "common/dependent_launch.cuh"
#include "common/memory.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

// The layout of `_RouterTopK` in kernels/mixture.py.
struct RouterTopK {
  int* ids;                 // [T, k]
  float* weights;           // [T, k]
  const float* logits;      // [T, E]
  const float* correction;  // [E], may be null
  float scale;
  int num_experts;
  int k;
  int is_sigmoid;
  int renormalizes;
  int num_groups;
  int top_groups;
  int group_score_k;
};

// A candidate expert of the selection. Candidates are in descending order of scores, ties by ascending index.
struct Candidate {
  float score;
  int index;

  __device__ __forceinline__ bool is_before(const Candidate& other) const {
    return score > other.score || (score == other.score && index < other.index);
  }
};

constexpr float kLargest = __builtin_huge_valf();

// Sentinels before and after all candidates: scores are finite.
__device__ __forceinline__ Candidate before_all() { return {kLargest, -1}; }
__device__ __forceinline__ Candidate after_all() { return {-kLargest, 0x7fffffff}; }

// The first candidate after `previous` in that order, among [begin, end) with stride `step`; after_all() if none is.
__device__ __forceinline__ Candidate next_candidate(const float* scores, int begin, int end, int step,
                                                    const Candidate& previous) {
  Candidate best = after_all();
  for (int i = begin; i < end; i += step) {
    const Candidate candidate{scores[i], i};
    if (previous.is_before(candidate) && candidate.is_before(best)) {
      best = candidate;
    }
  }
  return best;
}

// The first of the candidates of a warp's lanes.
__device__ __forceinline__ Candidate first_of_lanes(const Candidate& mine) {
  const int bits = __float_as_int(mine.score);
  const int order = bits >= 0 ? bits : bits ^ 0x7fffffff;  // as the scores
  const int largest = __reduce_max_sync(kFullWarp, order);
  const int index = __reduce_min_sync(kFullWarp, order == largest ? mine.index : 0x7fffffff);
  return {__int_as_float(largest >= 0 ? largest : largest ^ 0x7fffffff), index};
}

// The first candidate after `previous` among [0, end), found by a warp.
__device__ __forceinline__ Candidate next_of_warp(const float* scores, int end, const Candidate& previous) {
  return first_of_lanes(next_candidate(scores, lane_index(), end, kWarpSize, previous));
}

// Writes the softmax or sigmoid of a token's logits to scores[E]; NaN becomes the least of all, so that ids are valid.
__device__ __forceinline__ void write_scores(float* scores, const float* logits, const RouterTopK& call) {
  float largest = -kLargest, sum = 0.0f;
#pragma unroll 4
  for (int i = lane_index(); i < call.num_experts; i += kWarpSize) {
    scores[i] = logits[i];
    largest = fmaxf(largest, scores[i]);
  }
  largest = warp_reduce<Max>(largest);
  for (int i = lane_index(); i < call.num_experts; i += kWarpSize) {
    const float logit = scores[i];
    const float power = call.is_sigmoid != 0 ? expf(-fabsf(logit)) : expf(logit - largest);
    scores[i] = call.is_sigmoid != 0 ? (logit >= 0.0f ? 1.0f : power) / (1.0f + power) : power;
    sum += power;
  }
  const float inverse = call.is_sigmoid != 0 ? 1.0f : 1.0f / warp_reduce<Sum>(sum);
  for (int i = lane_index(); i < call.num_experts; i += kWarpSize) {
    const float score = scores[i] * inverse;
    scores[i] = score == score ? score : -kLargest;
  }
}

// Masks the experts outside of the best groups. group_scores[num_groups] is scratch memory.
__device__ __forceinline__ void mask_groups(float* selection_scores, float* group_scores, const RouterTopK& call) {
  const int size = call.num_experts / call.num_groups;
  for (int group = lane_index(); group < call.num_groups; group += kWarpSize) {
    float sum = 0.0f;
    Candidate candidate = before_all();
    for (int i = 0; i < min(call.group_score_k, size); ++i) {
      candidate = next_candidate(selection_scores, group * size, (group + 1) * size, 1, candidate);
      sum += candidate.score;
    }
    group_scores[group] = sum;
  }
  __syncwarp();
  Candidate worst = before_all();  // of the chosen groups
  for (int i = 0; i < call.top_groups; ++i) {
    worst = next_of_warp(group_scores, call.num_groups, worst);
  }
  for (int i = lane_index(); i < call.num_experts; i += kWarpSize) {
    const Candidate group{group_scores[i / size], i / size};
    if (worst.is_before(group)) {
      selection_scores[i] = -kLargest;
    }
  }
  __syncwarp();
}

// Dynamic shared memory: float[2 · num_experts + num_groups], int[k].
__device__ __forceinline__ void router_topk(const RouterTopK& call) {
  AETHER_DYNAMIC_SHARED(float, scores);
  float* const selection_scores = scores + call.num_experts;
  float* const group_scores = selection_scores + call.num_experts;
  int* const chosen = reinterpret_cast<int*>(group_scores + call.num_groups);
  const int64_t token = blockIdx.x;
  write_scores(scores, call.logits + token * call.num_experts, call);
  for (int i = lane_index(); i < call.num_experts; i += kWarpSize) {
    const float selection_score = call.correction == nullptr ? scores[i] : scores[i] + call.correction[i];
    selection_scores[i] = selection_score == selection_score ? selection_score : -kLargest;
  }
  __syncwarp();
  if (call.top_groups < call.num_groups) {
    mask_groups(selection_scores, group_scores, call);
  }
  // A lane keeps the first of its candidates that is not chosen yet.
  const auto next_of_lane = [&](const Candidate& previous) {
    return next_candidate(selection_scores, lane_index(), call.num_experts, kWarpSize, previous);
  };
  Candidate mine = next_of_lane(before_all());
  float sum = 0.0f;
  for (int i = 0; i < call.k; ++i) {
    const int id = first_of_lanes(mine).index;
    sum += scores[id];
    if (mine.index == id) {
      chosen[i] = id;
      mine = next_of_lane(mine);
    }
  }
  __syncwarp();
  const float factor = call.renormalizes != 0 ? call.scale / (sum + 1e-20f) : call.scale;
  for (int i = lane_index(); i < call.k; i += kWarpSize) {
    call.ids[token * call.k + i] = chosen[i];
    call.weights[token * call.k + i] = scores[chosen[i]] * factor;
  }
}

}  // namespace aether

extern "C" __global__ void __launch_bounds__(32) router_topk(aether::RouterTopK call) {
  aether::begin_kernel();
  aether::router_topk(call);
}
