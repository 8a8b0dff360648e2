// Samples one token of a row of float32 logits under top_k, top_p and min_p.
//
// Each truncation keeps a prefix of the descending order, so it is described by the mass of that prefix; the token is
// the element at which the running mass reaches the random fraction of it (inverse transform sampling). Three methods
// give the same token: sorting the elements above a threshold derived from segment maxima (one more read of the row);
// sorting the bins in which running sums end; and radix selection, which handles any row.
#pragma once

#include "common/row_candidates.cuh"
#include "common/row_masses.cuh"
#include "common/row_segments.cuh"

namespace aether {

constexpr int kNoToken = -1;

struct Truncation {
  int top_k;
  float top_p;
  float min_p;
  uint32_t min_p_bits;  // min_p removes elements with smaller ordered bits

  __device__ __forceinline__ bool has_k() const { return top_k > 0; }
  __device__ __forceinline__ bool has_p() const { return top_p < 1.0f; }
  __device__ __forceinline__ bool has_min() const { return min_p > 0.0f; }
  __device__ __forceinline__ bool is_any() const { return has_k() || has_p() || has_min(); }
  // Whether the cut depends on the mass of the whole row.
  __device__ __forceinline__ bool needs_row_total() const { return !has_k() && (has_p() || !has_min()); }
};

__device__ __forceinline__ Truncation truncation_of(int top_k, float top_p, float min_p, int size) {
  return {top_k < size ? top_k : 0, top_p, min_p, 0};
}

// Ordered bits of the smallest value that weighs at least `min_p` of the largest; every thread gets it.
__device__ __forceinline__ uint32_t min_p_bits(const SoftmaxWeights& softmax, float min_p) {
  __shared__ uint32_t threshold;
  if (warp_index() == 0) {
    uint32_t low = 0, high = ordered_bits(softmax.largest);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      const float value = from_ordered_bits(middle);
      if (value == value && softmax.relative_weight(value) >= static_cast<double>(min_p)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    if (lane_index() == 0) {
      threshold = low;
    }
  }
  __syncthreads();
  return threshold;
}

// Ordered bits below which elements weigh nothing: 40 temperatures below the largest.
__device__ __forceinline__ uint32_t min_weighted_bits(const SoftmaxWeights& softmax) {
  const float smallest = softmax.largest - 40.0f * softmax.temperature;
  const uint32_t finite = ordered_bits(Max::kNeutral) + 1;
  return smallest == smallest ? max(finite, ordered_bits(smallest)) : finite;
}

// Estimates whether the elements above a threshold are too light for top_p, so that sorting them would be in vain. Each
// of the first `count` segments of the sorted `maxima` has at least one; their mass is estimated as twice that of the
// maxima.
__device__ __forceinline__ bool lacks_top_p_mass(const Candidates& maxima, int count, uint64_t total,
                                                 const SoftmaxWeights& softmax, float top_p) {
  uint64_t above = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    above += softmax.weight(value_of(maxima[i]));
  }
  return 2.0 * static_cast<double>(block_sum(above)) < static_cast<double>(top_p) * static_cast<double>(total);
}

// Samples among the elements above a threshold, if they are few enough and contain the whole cut. `total` is the mass
// of the row where the truncation needs it.
__device__ __forceinline__ int sample_above_threshold(Candidates& candidates, const Row& row, const uint32_t* maxima,
                                                      int num_segments, uint64_t total, const SoftmaxWeights& softmax,
                                                      const Truncation& truncation, double random) {
  constexpr int kExpectedSegments = 768;  // segments expected to contain what top_p keeps
  uint32_t threshold = min_weighted_bits(softmax);
  if (row.size > kMaxCandidates && (truncation.has_k() || truncation.needs_row_total())) {
    // At least one element per segment whose maximum reaches the threshold is above it.
    const int max_wanted = max(num_segments / 4 * 3, 1);
    if (truncation.top_k > max_wanted) {
      return kNoToken;
    }
    const int wanted = truncation.has_k() ? truncation.top_k : min(kExpectedSegments, max_wanted);
    for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
      candidates[i] = static_cast<unsigned long long>(maxima[i]) << 32;
    }
    sort_descending(candidates, num_segments);
    threshold = max(threshold, static_cast<uint32_t>(candidates[wanted - 1] >> 32));
    if (truncation.needs_row_total() && truncation.has_p() && !truncation.has_min() &&
        lacks_top_p_mass(candidates, wanted, total, softmax, truncation.top_p)) {
      return kNoToken;
    }
    __syncthreads();
  }
  // top_p is relative to the mass that top_k keeps, before min_p is applied.
  bool has_all_above_min_p = false;
  if (truncation.has_min() && !(truncation.has_k() && truncation.has_p())) {
    has_all_above_min_p = truncation.min_p_bits >= threshold;
    threshold = max(threshold, truncation.min_p_bits);
  }
  const int count = gather(candidates, row, [&](float value) { return ordered_bits(value) >= threshold; });
  if (count > kMaxCandidates) {
    return kNoToken;
  }
  sort_descending(candidates, count);
  const RunningSums sums(candidates, count, softmax, Mass{0, 0});
  uint64_t kept = sums.total;
  if (truncation.has_k() && count > truncation.top_k) {
    kept = sums.find_cut<ByCount>(truncation.top_k).through.weight;
  }
  if (truncation.needs_row_total() || truncation.has_p()) {
    const uint64_t total_mass = truncation.needs_row_total() ? total : kept;
    const CutPoint last = sums.find_cut<ByWeight>(target_reaching(truncation.top_p, total_mass));
    if (last.rank != 0) {
      kept = last.through.weight;
    } else if (!has_all_above_min_p) {
      return kNoToken;
    }
  }
  if (truncation.has_min()) {
    const uint64_t min_p_weight = sums.weight_from(truncation.min_p_bits);
    kept = min_p_weight < kept ? min_p_weight : kept;
  }
  return index_of(sums.find_cut<ByWeight>(target_beyond(random, kept)).rank);
}

// Sorts the elements of the bin in which a running sum reaches a target; a rank of 0 if they are too many or below all
// bins.
template <class Measure>
__device__ __forceinline__ CutPoint find_cut_in_bin(Candidates& candidates, const CoarseHistogram& coarse,
                                                    const Row& row, const SoftmaxWeights& softmax, uint64_t target) {
  const FoundBin found = coarse.find<Measure>(target);
  if (found.bin < 0 || coarse.histogram.mass(found.bin).count > kMaxCandidates) {
    return {0, {0, 0}};
  }
  const int count = gather(candidates, row, [&](float value) { return coarse.bin(value) == found.bin; });
  sort_descending(candidates, count);
  return RunningSums(candidates, count, softmax, found.before).template find_cut<Measure>(target);
}

__device__ __forceinline__ int sample_by_bins(Histogram& histogram, Candidates& candidates, const Row& row,
                                              const SoftmaxWeights& softmax, const Truncation& truncation,
                                              double random) {
  CoarseHistogram coarse(histogram, softmax.largest, softmax.temperature);
  uint64_t kept = coarse.fill(row, [&](float value, int) { return softmax.weight(value); });
  if (truncation.has_k()) {
    const CutPoint last = find_cut_in_bin<ByCount>(candidates, coarse, row, softmax, truncation.top_k);
    if (last.rank == 0) {
      return kNoToken;
    }
    kept = last.through.weight;
  }
  if (truncation.has_p()) {
    const uint64_t target = target_reaching(truncation.top_p, kept);
    const CutPoint last = find_cut_in_bin<ByWeight>(candidates, coarse, row, softmax, target);
    if (last.rank == 0) {
      return kNoToken;
    }
    kept = last.through.weight;
  }
  if (truncation.has_min()) {
    const int last_bin = coarse.bin(from_ordered_bits(truncation.min_p_bits));
    if (last_bin >= kBins || histogram.mass(last_bin).count > kMaxCandidates) {
      return kNoToken;
    }
    const Mass before = coarse.mass_before(last_bin);
    const int count = gather(candidates, row, [&](float value) { return coarse.bin(value) == last_bin; });
    sort_descending(candidates, count);
    const uint64_t in_bin = RunningSums(candidates, count, softmax, Mass{0, 0}).weight_from(truncation.min_p_bits);
    kept = before.weight + in_bin < kept ? before.weight + in_bin : kept;
  }
  const uint64_t target = target_beyond(random, kept);
  const CutPoint chosen = find_cut_in_bin<ByWeight>(candidates, coarse, row, softmax, target);
  return chosen.rank == 0 ? kNoToken : index_of(chosen.rank);
}

__device__ __noinline__ int sample_by_radix_select(Histogram& histogram, const Row& row, const SoftmaxWeights& softmax,
                                                   const Truncation& truncation, double random) {
  uint64_t all = 0, min_p_weight = 0;
  for_each_logit<kFewVectorsAhead>(row.logits, row.size, [&](float value, int) {
    const uint64_t weight = softmax.weight(value);
    all += weight;
    min_p_weight += ordered_bits(value) >= truncation.min_p_bits ? weight : 0;
  });
  uint64_t kept = block_sum(all);
  min_p_weight = block_sum(min_p_weight);
  if (truncation.has_k()) {
    const uint64_t top_k = truncation.top_k;
    const Position last = radix_select_value<ByCount>(histogram, row, softmax, top_k);
    kept = last.before.weight + (top_k - last.before.count) * softmax.weight(from_ordered_bits(last.part));
  }
  if (truncation.has_p()) {
    const uint64_t target = target_reaching(truncation.top_p, kept);
    const Position last = radix_select_value<ByWeight>(histogram, row, softmax, target);
    const uint64_t each = softmax.weight(from_ordered_bits(last.part));
    kept = last.before.weight + (target - last.before.weight + each - 1) / each * each;
  }
  if (truncation.has_min()) {
    kept = min_p_weight < kept ? min_p_weight : kept;
  }
  const uint64_t target = target_beyond(random, kept);
  const Position chosen = radix_select_value<ByWeight>(histogram, row, softmax, target);
  const uint64_t each = softmax.weight(from_ordered_bits(chosen.part));
  return tied_index(histogram, row, softmax, chosen.part, (target - chosen.before.weight + each - 1) / each);
}

}  // namespace aether
