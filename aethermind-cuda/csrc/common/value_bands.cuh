// Samples a token of a row whose truncation keeps more elements than can be sorted: a histogram of counts estimates
// where the cut and the token are in the descending order, and one more read sums the weights above and between two
// bands of values around them, and gathers the elements inside, whose running sums are then exact.
#pragma once

#include "common/row_candidates.cuh"
#include "common/sampling_params.cuh"

namespace aether {

// Running sums over the bins, four to each of 512 threads.
struct BinSums {
  static constexpr int kPerThread = kBins / kSortingThreads;

  Histogram& histogram;

  // Counts a row's elements, and estimates the weights of bins, where the largest weighs `heaviest`: as that of the
  // mean element where few elements may be heavy, and as that of the middle elsewhere.
  __device__ __forceinline__ BinSums(const CoarseHistogram& coarse, const Row& row, float bins_per_nat, float heaviest)
      : histogram(coarse.histogram) {
    constexpr float kHeavyBins = 256.0f, kOffsetUnit = 4096.0f;
    coarse.fill(row, [&](float position) {
      if (position < kHeavyBins) {
        const int bin = static_cast<int>(position);
        const float offset = (position - static_cast<float>(bin)) * kOffsetUnit;
        atomicAdd(&histogram.low[Histogram::padded_bin(bin)], static_cast<unsigned>(offset));
      }
    });
    const float powers_per_bin = 1.44269504f / bins_per_nat;
#pragma unroll 1
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += static_cast<int>(blockDim.x)) {
      const int slot = Histogram::padded_bin(bin);
      const float first = static_cast<float>(bin), count = static_cast<float>(histogram.counts[slot]);
      const float offset = static_cast<float>(histogram.low[slot]) / (kOffsetUnit * fmaxf(count, 1.0f));
      const float power = -(first + (first < kHeavyBins ? offset : 0.5f)) * powers_per_bin;
      const auto weight = static_cast<uint64_t>(count * heaviest * exp2f(power));
      histogram.low[slot] = static_cast<unsigned>(weight);
      histogram.high[slot] = static_cast<unsigned>(weight >> 32);
    }
    __syncthreads();
  }

  // Over the bins before this thread's first one.
  template <class Measure>
  __device__ __forceinline__ PrefixSum before() const {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      sum += Measure::of(mass(i));
    }
    return block_prefix_sum(sum);
  }

  // Of a bin of this thread.
  __device__ __forceinline__ Mass mass(int i) const {
    return histogram.mass(static_cast<int>(threadIdx.x) * kPerThread + i);
  }

  // Where the running sum reaches a target, by linear interpolation inside a bin; infinity where no bin does. Every
  // thread gets it.
  template <class Measure>
  __device__ __forceinline__ float find(double target) const {
    __shared__ float found;
    if (threadIdx.x == 0) {
      found = target > 0.0 ? -Max::kNeutral : 0.0f;
    }
    __syncthreads();
    double reached = static_cast<double>(before<Measure>().before);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const double own = static_cast<double>(Measure::of(mass(i)));
      if (reached < target && target <= reached + own) {
        found = static_cast<float>(static_cast<int>(threadIdx.x) * kPerThread + i) +
                static_cast<float>((target - reached) / own);
      }
      reached += own;
    }
    __syncthreads();
    const float result = found;
    __syncthreads();  // `found` may be overwritten
    return result;
  }

  // The elements of a bin around a position, in the mean over 17 of them.
  __device__ __forceinline__ float density(float position) const {
    constexpr int kAround = 8;
    const int bin = static_cast<int>(fminf(position, static_cast<float>(kBins - 1)));
    unsigned sum = 0;
    for (int i = max(0, bin - kAround); i <= min(kBins - 1, bin + kAround); ++i) {
      sum += histogram.counts[Histogram::padded_bin(i)];
    }
    return static_cast<float>(sum) / static_cast<float>(2 * kAround + 1);
  }

  // The weight before a position; every thread gets it.
  __device__ __forceinline__ double weight_before(float position) const {
    __shared__ double found;
    const PrefixSum sums = before<ByWeight>();
    if (threadIdx.x == 0) {
      found = static_cast<double>(sums.total);
    }
    __syncthreads();
    double reached = static_cast<double>(sums.before);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const double own = static_cast<double>(mass(i).weight);
      const float inside = position - static_cast<float>(static_cast<int>(threadIdx.x) * kPerThread + i);
      if (inside >= 0.0f && inside < 1.0f) {
        found = reached + static_cast<double>(inside) * own;
      }
      reached += own;
    }
    __syncthreads();
    const double result = found;
    __syncthreads();  // `found` may be overwritten
    return result;
  }
};

// Bins [first, last).
struct Band {
  float first;
  float last;

  // About 700 elements around a position.
  __device__ __forceinline__ static Band around(float position, float density) {
    const float half = fminf(32.0f, 350.0f / fmaxf(density, 1.0f));
    return {position - half, position + half};
  }

  __device__ __forceinline__ bool contains(float position) const { return position >= first && position < last; }
};

// The state of the search between attempts, in shared memory because there are too few registers.
struct BandSearch {
  Band upper;  // around the token
  Band lower;  // around the cut; empty where the upper band contains it
  // Exact masses before the bands less their estimates.
  float upper_error;
  float lower_error;
  float cut;         // its estimated position
  bool is_by_count;  // the cut is that of top_k
  // Exact masses before the bands.
  Mass before_upper;
  Mass before_lower;

  // Sets the bands; every thread of the block calls it.
  __device__ __forceinline__ void place(const BinSums& bins, float token, float cut) {
    if (threadIdx.x == 0) {
      this->cut = cut;
      upper = Band::around(token, bins.density(token));
      lower = Band::around(cut, bins.density(cut));
      if (lower.first < upper.last) {
        upper = {fminf(upper.first, lower.first), fmaxf(upper.last, lower.last)};
        lower = {upper.last, upper.last};
      }
    }
    __syncthreads();
  }
};

// Gathers the elements of the bands and sums those before each; returns the number of gathered elements.
__device__ __forceinline__ int gather_bands(Candidates& candidates, BandSearch& search, const Row& row,
                                            const CoarseHistogram& coarse, const SoftmaxWeights& softmax) {
  const Band upper = search.upper, lower = search.lower;
  unsigned num_before_upper = 0, num_before_lower = 0;
  uint64_t weight_before_upper = 0, weight_before_lower = 0;
  __shared__ int num_gathered;
  if (threadIdx.x == 0) {
    num_gathered = 0;
  }
  __syncthreads();
  for_each_logit<kShallowPrefetchVectors>(row.logits, row.size, [&](float value, int index) {
    const float position = coarse.position(value);
    const uint64_t weight = softmax.weight(value);
    num_before_upper += position < upper.first;
    weight_before_upper += position < upper.first ? weight : 0;
    num_before_lower += position < lower.first;
    weight_before_lower += position < lower.first ? weight : 0;
    if (upper.contains(position) || lower.contains(position)) {
      const int slot = atomicAdd(&num_gathered, 1);
      if (slot < kMaxCandidates) {
        candidates[slot] = rank_of(value, index);
      }
    }
  });
  const Mass before_upper{block_sum(num_before_upper), block_sum(weight_before_upper)};
  const Mass before_lower{block_sum(num_before_lower), block_sum(weight_before_lower)};
  if (threadIdx.x == 0) {
    search.before_upper = before_upper;
    search.before_lower = before_lower;
  }
  __syncthreads();
  return num_gathered;
}

// Samples under any limits.
__device__ __forceinline__ int sample_in_bands(Histogram& histogram, Candidates& candidates, const Row& row,
                                               const uint32_t* maxima, int num_segments, const SoftmaxWeights& softmax,
                                               SamplingParams& params) {
  constexpr int kAttempts = 4;
  __shared__ BandSearch search;
  // Flat rows get narrower bins: eight times the range of the segments' maxima.
  const float range = (softmax.largest - smallest_of_maxima(maxima, num_segments)) / params.temperature;
  const float bins_per_nat = fminf(fmaxf(kBins / 8 / range, 64.0f), 65536.0f);
  CoarseHistogram coarse(histogram, softmax.largest, bins_per_nat / params.temperature);
  const BinSums bins(coarse, row, bins_per_nat, static_cast<float>(softmax.weight(softmax.largest)));
  if (threadIdx.x == 0) {
    search.upper_error = search.lower_error = 0.0f;
    search.is_by_count = params.has_k();
  }
  __syncthreads();
  // The position of min_p's limit; infinity if min_p removes nothing before the current limit.
  const auto min_p_position = [&] {
    const bool is_used = params.has_min() && !(search.is_by_count && params.has_p());
    return is_used ? coarse.position(from_ordered_bits(params.min_p_bits)) : -Max::kNeutral;
  };
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    float cut = -Max::kNeutral;  // after all elements
    if (search.is_by_count) {
      cut = bins.find<ByCount>(params.top_k);
    } else if (params.has_p()) {
      cut = bins.find<ByWeight>(static_cast<double>(params.mass_target()) - search.lower_error);
    }
    cut = fminf(cut, min_p_position());
    const double kept_estimate = bins.weight_before(cut) + search.lower_error;
    search.place(bins, bins.find<ByWeight>(params.random * kept_estimate - search.upper_error), cut);
    const int count = gather_bands(candidates, search, row, coarse, softmax);
    if (count > kMaxCandidates) {
      return kNoToken;
    }
    sort_descending(candidates, count);
    RunningSums sums(candidates, count, softmax, search.before_upper);
    // The mass that all limits keep. A limit after the bands keeps every element before their end.
    Mass kept = sums.insert_gap(count, search.before_upper, search.before_lower,
                                [&](float value) { return coarse.position(value) >= search.upper.last; });
    const Mass end = kept;
    bool is_found = true;
    if (search.is_by_count && kept.count >= static_cast<uint64_t>(params.top_k)) {
      kept = sums.find_cut<ByCount>(params.top_k).through;
    } else if (!search.is_by_count && params.has_p() && kept.weight >= params.mass_target()) {
      kept = sums.find_cut<ByWeight>(params.mass_target()).through;
    } else {
      is_found = search.cut == -Max::kNeutral || min_p_position() < search.lower.last;
    }
    is_found = is_found && kept.count != 0;
    const bool is_first_of_two = is_found && search.is_by_count && params.has_p();
    if (is_found && !is_first_of_two) {
      if (params.has_min()) {
        kept.weight = min(kept.weight, end.weight - sums.weight_below(params.min_p_bits));
      }
      const CutPoint chosen = sums.find_cut<ByWeight>(target_beyond(params.random, kept.weight));
      if (chosen.rank != 0) {
        return index_of(chosen.rank);
      }
    }
    const double upper_estimate = bins.weight_before(search.upper.first);
    const double lower_estimate = bins.weight_before(search.lower.first);
    if (threadIdx.x == 0) {
      search.upper_error = static_cast<float>(static_cast<double>(search.before_upper.weight) - upper_estimate);
      search.lower_error = static_cast<float>(static_cast<double>(search.before_lower.weight) - lower_estimate);
      if (is_first_of_two) {
        params.total = kept.weight;  // top_p refers to what top_k keeps
        search.is_by_count = false;
      }
    }
    __syncthreads();
  }
  return kNoToken;
}

}  // namespace aether
