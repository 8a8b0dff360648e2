// Sampling of one token of a row under top_k, top_p and min_p.
//
// Each cut keeps a prefix of the descending order, so it is described by the mass of that prefix; the token is the
// element at which the running mass reaches the random share of it. Three methods give the same token: sorting the
// elements above a threshold derived from segment maxima (one more read of the row); sorting the bins in which running
// sums end; and radix selection, which handles any row.
#pragma once

#include "common/row_candidates.cuh"
#include "common/row_parts.cuh"
#include "common/row_segments.cuh"

namespace aether {

constexpr int kNoToken = -1;

struct Cuts {
  int top_k;
  float top_p;
  float min_p;
  uint32_t least;  // min_p removes elements with smaller ordered bits

  __device__ __forceinline__ bool has_k() const { return top_k > 0; }
  __device__ __forceinline__ bool has_p() const { return top_p < 1.0f; }
  __device__ __forceinline__ bool has_min() const { return min_p > 0.0f; }
  __device__ __forceinline__ bool is_any() const { return has_k() || has_p() || has_min(); }
  // Whether the cut depends on the mass of the whole row.
  __device__ __forceinline__ bool is_total_needed() const { return !has_k() && (has_p() || !has_min()); }
};

__device__ __forceinline__ Cuts cuts_of(int top_k, float top_p, float min_p, int size) {
  return {top_k < size ? top_k : 0, top_p, min_p, 0};
}

// Ordered bits of the smallest value that weighs at least `share` of the largest; every thread gets it.
__device__ __forceinline__ uint32_t least_value(const Weighing& weighing, float share) {
  __shared__ uint32_t least;
  if (warp_index() == 0) {
    uint32_t low = 0, high = ordered_bits(weighing.largest);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      const float value = from_ordered_bits(middle);
      if (value == value && weighing.share(value) >= static_cast<double>(share)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    if (lane_index() == 0) {
      least = low;
    }
  }
  __syncthreads();
  return least;
}

// Ordered bits below which elements weigh nothing: 40 temperatures below the largest.
__device__ __forceinline__ uint32_t weighing_from(const Weighing& weighing) {
  const float least = weighing.largest - 40.0f * weighing.temperature;
  const uint32_t finite = ordered_bits(Max::kNeutral) + 1;
  return least == least ? max(finite, ordered_bits(least)) : finite;
}

// Estimates whether the elements above a threshold are too light for top_p, so that sorting them would be in vain. Each
// of the first `count` segments of the sorted `maxima` has at least one; their mass is estimated as twice that of the
// maxima. Without `totals` the mass below the threshold is estimated from every 64th element.
__device__ __forceinline__ bool is_too_light(const Candidates& maxima, int count, uint32_t threshold, const Row& row,
                                             const unsigned long long* totals, const Weighing& weighing, float top_p) {
  constexpr int kEvery = 64;
  uint64_t above = 0, below = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    above += weighing.weight(value_of(maxima[i]));
  }
  if (totals == nullptr) {
    for (int i = static_cast<int>(threadIdx.x) * kEvery; i < row.size; i += static_cast<int>(blockDim.x) * kEvery) {
      const float value = row.logits[i];
      below += ordered_bits(value) < threshold ? weighing.weight(value) : 0;
    }
    below = block_sum(below);
  }
  const double candidates = 2.0 * static_cast<double>(block_sum(above));
  const double total =
      totals != nullptr ? static_cast<double>(sum_of_parts(totals)) : candidates + kEvery * static_cast<double>(below);
  return candidates < static_cast<double>(top_p) * total;
}

// Samples among the elements above a threshold, if they are few enough and contain the whole cut. `totals` may be null.
__device__ __forceinline__ int sample_above_threshold(Candidates& candidates, const Row& row, const uint32_t* maxima,
                                                      int num_segments, const unsigned long long* totals,
                                                      const Weighing& weighing, const Cuts& cuts, double share) {
  constexpr int kGuess = 768;  // segments expected to contain what top_p keeps
  uint32_t threshold = weighing_from(weighing);
  if (row.size > kMostCandidates && (cuts.has_k() || cuts.is_total_needed())) {
    // At least one element per segment whose maximum reaches the threshold is above it.
    const int most = max(num_segments / 4 * 3, 1);
    if (cuts.top_k > most) {
      return kNoToken;
    }
    const int wanted = cuts.has_k() ? cuts.top_k : min(kGuess, most);
    for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
      candidates[i] = static_cast<unsigned long long>(maxima[i]) << 32;
    }
    sort_descending(candidates, num_segments);
    threshold = max(threshold, static_cast<uint32_t>(candidates[wanted - 1] >> 32));
    if (cuts.is_total_needed() && cuts.has_p() && !cuts.has_min() &&
        is_too_light(candidates, wanted, threshold, row, totals, weighing, cuts.top_p)) {
      return kNoToken;
    }
    __syncthreads();
  }
  // top_p is relative to the mass that top_k keeps, before min_p is applied.
  bool has_all_from_least = false;
  if (cuts.has_min() && !(cuts.has_k() && cuts.has_p())) {
    has_all_from_least = cuts.least >= threshold;
    threshold = max(threshold, cuts.least);
  }
  const auto is_above = [&](float value) { return ordered_bits(value) >= threshold; };
  uint64_t total = 0;
  int count;
  if (!cuts.is_total_needed() || totals != nullptr) {
    count = gather(candidates, row, is_above);
    total = cuts.is_total_needed() ? sum_of_parts(totals) : 0;
  } else {
    count = gather<kFewVectorsAhead>(candidates, row, [&](float value) {
      total += weighing.weight(value);
      return is_above(value);
    });
    total = block_sum(total);
  }
  if (count > kMostCandidates) {
    return kNoToken;
  }
  sort_descending(candidates, count);
  const RunningSums sums(candidates, count, weighing, Mass{0, 0});
  uint64_t kept = sums.total;
  if (cuts.has_k() && count > cuts.top_k) {
    kept = sums.reach<ByCount>(cuts.top_k).through.weight;
  }
  if (cuts.is_total_needed() || cuts.has_p()) {
    const uint64_t whole = cuts.is_total_needed() ? total : kept;
    const Reached last = sums.reach<ByWeight>(target_reaching(cuts.top_p, whole));
    if (last.rank != 0) {
      kept = last.through.weight;
    } else if (!has_all_from_least) {
      return kNoToken;
    }
  }
  if (cuts.has_min()) {
    const uint64_t from_least = sums.weight_from(cuts.least);
    kept = from_least < kept ? from_least : kept;
  }
  return index_of(sums.reach<ByWeight>(target_beyond(share, kept)).rank);
}

// Sorts the elements of the bin in which a running sum reaches a target; a rank of 0 if they are too many or below all
// bins.
template <class Measure>
__device__ __forceinline__ Reached reach_in_bin(Candidates& candidates, const CoarseHistogram& coarse, const Row& row,
                                                const Weighing& weighing, uint64_t target) {
  const Found found = coarse.find<Measure>(target);
  if (found.bin < 0 || coarse.histogram.mass(found.bin).count > kMostCandidates) {
    return {0, {0, 0}};
  }
  const int count = gather(candidates, row, [&](float value) { return coarse.bin(value) == found.bin; });
  sort_descending(candidates, count);
  return RunningSums(candidates, count, weighing, found.before).template reach<Measure>(target);
}

__device__ __forceinline__ int sample_by_bins(Histogram& histogram, Candidates& candidates, const Row& row,
                                              const Weighing& weighing, const Cuts& cuts, double share) {
  CoarseHistogram coarse(histogram, weighing.largest, weighing.temperature);
  uint64_t kept = coarse.fill(row, [&](float value, int) { return weighing.weight(value); });
  if (cuts.has_k()) {
    const Reached last = reach_in_bin<ByCount>(candidates, coarse, row, weighing, cuts.top_k);
    if (last.rank == 0) {
      return kNoToken;
    }
    kept = last.through.weight;
  }
  if (cuts.has_p()) {
    const uint64_t target = target_reaching(cuts.top_p, kept);
    const Reached last = reach_in_bin<ByWeight>(candidates, coarse, row, weighing, target);
    if (last.rank == 0) {
      return kNoToken;
    }
    kept = last.through.weight;
  }
  if (cuts.has_min()) {
    const int last_bin = coarse.bin(from_ordered_bits(cuts.least));
    if (last_bin >= kBins || histogram.mass(last_bin).count > kMostCandidates) {
      return kNoToken;
    }
    const Mass before = coarse.mass_before(last_bin);
    const int count = gather(candidates, row, [&](float value) { return coarse.bin(value) == last_bin; });
    sort_descending(candidates, count);
    const uint64_t in_bin = RunningSums(candidates, count, weighing, Mass{0, 0}).weight_from(cuts.least);
    kept = before.weight + in_bin < kept ? before.weight + in_bin : kept;
  }
  const uint64_t target = target_beyond(share, kept);
  const Reached chosen = reach_in_bin<ByWeight>(candidates, coarse, row, weighing, target);
  return chosen.rank == 0 ? kNoToken : index_of(chosen.rank);
}

__device__ __noinline__ int sample_by_descents(Histogram& histogram, const Row& row, const Weighing& weighing,
                                               const Cuts& cuts, double share) {
  uint64_t all = 0, from_least = 0;
  for_each_logit<kFewVectorsAhead>(row.logits, row.size, [&](float value, int) {
    const uint64_t weight = weighing.weight(value);
    all += weight;
    from_least += ordered_bits(value) >= cuts.least ? weight : 0;
  });
  uint64_t kept = block_sum(all);
  from_least = block_sum(from_least);
  if (cuts.has_k()) {
    const uint64_t top_k = cuts.top_k;
    const Position last = radix_select_value<ByCount>(histogram, row, weighing, top_k);
    kept = last.before.weight + (top_k - last.before.count) * weighing.weight(from_ordered_bits(last.part));
  }
  if (cuts.has_p()) {
    const uint64_t target = target_reaching(cuts.top_p, kept);
    const Position last = radix_select_value<ByWeight>(histogram, row, weighing, target);
    const uint64_t each = weighing.weight(from_ordered_bits(last.part));
    kept = last.before.weight + (target - last.before.weight + each - 1) / each * each;
  }
  if (cuts.has_min()) {
    kept = from_least < kept ? from_least : kept;
  }
  const uint64_t target = target_beyond(share, kept);
  const Position chosen = radix_select_value<ByWeight>(histogram, row, weighing, target);
  const uint64_t each = weighing.weight(from_ordered_bits(chosen.part));
  return tied_index(histogram, row, weighing, chosen.part, (target - chosen.before.weight + each - 1) / each);
}

}  // namespace aether
