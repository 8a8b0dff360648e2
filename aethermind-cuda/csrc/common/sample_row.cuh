// Samples one token of a row of float32 logits under top_k, top_p and min_p.
//
// Each truncation keeps a prefix of the descending order, so it is described by the mass of that prefix; the token is
// the element at which the running mass reaches the random fraction of it (inverse transform sampling). Three methods
// give the same token: sorting the elements above a threshold derived from segment maxima (one more read of the row);
// sorting two bands of values (two more reads, or a few); and radix selection, which handles any row.
#pragma once

#include "common/row_masses.cuh"
#include "common/value_bands.cuh"

namespace aether {

// Rows of more elements have more candidates than can be sorted where three quarters of their segments have one: 1.4 a
// segment, if elements are independent.
constexpr int kMaxSortedRow = kMaxCandidates / 2 * kSegmentUnit;

__device__ __forceinline__ int num_segments_above(const uint32_t* maxima, int num_segments, uint32_t threshold) {
  uint64_t count = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
    count += maxima[i] >= threshold;
  }
  return static_cast<int>(block_sum(count));
}

// Samples among the elements above a threshold, if they are few enough and contain the whole cut.
__device__ __forceinline__ int sample_above_threshold(Candidates& candidates, const Row& row, const uint32_t* maxima,
                                                      int segment, int num_segments, const SoftmaxWeights& softmax,
                                                      const SamplingParams& params) {
  uint32_t threshold = min_weighted_bits(softmax.largest, params.temperature);
  if (row.size > kMaxCandidates && (params.has_k() || params.needs_row_total())) {
    // At least one element per segment whose maximum reaches the threshold is above it. More segments than these would
    // often have too many.
    const int max_wanted = max(num_segments / 4 * 3, 1);
    if (params.top_k > max_wanted) {
      return kNoToken;
    }
    const bool is_by_mass = params.needs_row_total() && params.has_p() && !params.has_min();
    uint64_t mass = 0;
    for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
      candidates[i] = static_cast<unsigned long long>(maxima[i]) << 32;
      mass += is_by_mass ? softmax.weight(from_ordered_bits(maxima[i])) : 0;
    }
    // Elements that are few enough to be sorted weigh about twice the maxima.
    if (is_by_mass && 2 * block_sum(mass) < params.mass_target()) {
      return kNoToken;
    }
    sort_descending(candidates, num_segments);
    int wanted = params.has_k() ? params.top_k : max_wanted;
    if (is_by_mass) {
      const RunningSums sums(candidates, max_wanted, softmax, Mass{0, 0});
      const CutPoint last = sums.find_cut<ByWeight>(params.mass_target());
      if (last.rank != 0) {
        wanted = static_cast<int>(last.through.count);
      }
    }
    threshold = max(threshold, static_cast<uint32_t>(candidates[wanted - 1] >> 32));
    __syncthreads();
  }
  // top_p is relative to the mass that top_k keeps, before min_p is applied.
  bool has_all_above_min_p = false;
  if (params.has_min() && !(params.has_k() && params.has_p())) {
    has_all_above_min_p = params.min_p_bits >= threshold;
    threshold = max(threshold, params.min_p_bits);
  }
  if (row.size > kMaxSortedRow && num_segments_above(maxima, num_segments, threshold) > num_segments / 4 * 3) {
    return kNoToken;
  }
  const int count = gather_from_segments(candidates, row, maxima, segment, num_segments, threshold);
  if (count > kMaxCandidates) {
    return kNoToken;
  }
  sort_descending(candidates, count);
  const RunningSums sums(candidates, count, softmax, Mass{0, 0});
  uint64_t kept = sums.total;
  if (params.has_k() && count > params.top_k) {
    kept = sums.find_cut<ByCount>(params.top_k).through.weight;
  }
  if (params.needs_row_total() || params.has_p()) {
    const uint64_t total_mass = params.needs_row_total() ? params.total : kept;
    const CutPoint last = sums.find_cut<ByWeight>(target_reaching(params.top_p, total_mass));
    if (last.rank != 0) {
      kept = last.through.weight;
    } else if (!has_all_above_min_p) {
      return kNoToken;
    }
  }
  if (params.has_min()) {
    const uint64_t min_p_weight = sums.weight_from(params.min_p_bits);
    kept = min_p_weight < kept ? min_p_weight : kept;
  }
  return index_of(sums.find_cut<ByWeight>(target_beyond(params.random, kept)).rank);
}

// A function of its own, which builds its weights again: callers keep theirs in registers.
__device__ __noinline__ int sample_by_radix_select(Histogram& histogram, const Powers& powers, const float* logits,
                                                   int size, float largest, const SamplingParams& params) {
  const Row row{logits, size};
  const SoftmaxWeights softmax(powers, SoftmaxScale(params.temperature), largest, weight_bits(size));
  uint64_t all = 0, min_p_weight = 0;
  for_each_logit<kShallowPrefetchVectors>(row.logits, row.size, [&](float value, int) {
    const uint64_t weight = softmax.weight(value);
    all += weight;
    min_p_weight += ordered_bits(value) >= params.min_p_bits ? weight : 0;
  });
  uint64_t kept = block_sum(all);
  min_p_weight = block_sum(min_p_weight);
  if (params.has_k()) {
    const uint64_t top_k = params.top_k;
    const Position last = radix_select_value<ByCount>(histogram, row, softmax, top_k);
    kept = last.before.weight + (top_k - last.before.count) * softmax.weight(from_ordered_bits(last.part));
  }
  if (params.has_p()) {
    const uint64_t target = target_reaching(params.top_p, kept);
    const Position last = radix_select_value<ByWeight>(histogram, row, softmax, target);
    const uint64_t each = softmax.weight(from_ordered_bits(last.part));
    kept = last.before.weight + (target - last.before.weight + each - 1) / each * each;
  }
  if (params.has_min()) {
    kept = min_p_weight < kept ? min_p_weight : kept;
  }
  const uint64_t target = target_beyond(params.random, kept);
  const Position chosen = radix_select_value<ByWeight>(histogram, row, softmax, target);
  const uint64_t each = softmax.weight(from_ordered_bits(chosen.part));
  return tied_index(histogram, row, softmax, chosen.part, (target - chosen.before.weight + each - 1) / each);
}

}  // namespace aether
