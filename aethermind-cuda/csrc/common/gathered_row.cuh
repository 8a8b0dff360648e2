// The selection among the elements that many blocks gathered from a row's windows: a histogram of their exact weights
// finds the few elements around a cut, which are then sorted.
#pragma once

#include "common/row_windows.cuh"

namespace aether {

// Elements that are sorted sooner than binned.
constexpr int kMaxSorted = 512;

// Gathered elements of a row from the top that are few, sorted.
struct SortedElements {
  RunningSums sums;

  __device__ __forceinline__ SortedElements(Candidates& candidates, const unsigned long long* ranks, int count,
                                            const SoftmaxWeights& softmax)
      : sums(sorted(candidates, ranks, count), count, softmax, Mass{0, 0}) {}

  __device__ __forceinline__ static const Candidates& sorted(Candidates& candidates, const unsigned long long* ranks,
                                                             int count) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      candidates[i] = ranks[i];
    }
    sort_descending(candidates, count);
    return candidates;
  }

  __device__ __forceinline__ uint64_t weight() const { return sums.total; }

  __device__ __forceinline__ uint64_t weight_from(uint32_t threshold) const { return sums.weight_from(threshold); }

  template <class Measure>
  __device__ __forceinline__ CutPoint find_cut(uint64_t target) const {
    return sums.find_cut<Measure>(target);
  }
};

// Gathered elements of a row in half of the bins for each window.
struct BinnedElements {
  static constexpr int kHalf = kBins / 2;
  static constexpr int kFew = 64;

  Histogram& histogram;
  Candidates& candidates;
  const unsigned long long* ranks;
  int count;
  const SoftmaxWeights& softmax;
  const Windows& windows;
  ValueBins upper, lower;

  __device__ __forceinline__ BinnedElements(Histogram& histogram, Candidates& candidates,
                                            const unsigned long long* ranks, int count, const SoftmaxWeights& softmax,
                                            const Windows& windows, bool needs_counts)
      : histogram(histogram),
        candidates(candidates),
        ranks(ranks),
        count(count),
        softmax(softmax),
        windows(windows),
        upper(bins(fminf(windows.upper_end, windows.largest), windows.upper_first)),
        lower(bins(windows.lower_end, windows.lower_first)) {
    histogram.clear();
    __syncthreads();
    for_each([&](uint64_t rank) { histogram.add(bin(value_of(rank)), softmax.weight(value_of(rank)), needs_counts); });
    __syncthreads();
    const RunningBins sums(histogram);
  }

  __device__ __forceinline__ static ValueBins bins(float end, float first) { return {end, 2.0f * (end - first)}; }

  __device__ __forceinline__ int bin(float value) const {
    const bool is_upper = value >= windows.upper_first;
    const float position = is_upper ? upper.position(value) : lower.position(value);
    return static_cast<int>(fminf(position, static_cast<float>(kHalf - 1))) + (is_upper ? 0 : kHalf);
  }

  // The running mass before a bin.
  __device__ __forceinline__ Mass before(int bin) const {
    const Mass gathered = bin > 0 ? histogram.mass(bin - 1) : Mass{0, 0};
    return {gathered.count, gathered.weight + (bin < kHalf ? windows.before_upper : skipped())};
  }

  // The mass before the lower window without the gathered elements.
  __device__ __forceinline__ uint64_t skipped() const {
    return windows.state == RowState::kDeep ? windows.before_lower - histogram.mass(kHalf - 1).weight : 0;
  }

  __device__ __forceinline__ uint64_t weight() const { return histogram.mass(kBins - 1).weight + skipped(); }

  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    constexpr int kAheadRanks = 8;
    const int threads = static_cast<int>(blockDim.x);
    for (int first = static_cast<int>(threadIdx.x); first < count; first += kAheadRanks * threads) {
      unsigned long long loaded[kAheadRanks];
#pragma unroll
      for (int ahead = 0; ahead < kAheadRanks; ++ahead) {
        loaded[ahead] = first + ahead * threads < count ? ranks[first + ahead * threads] : 0;
      }
#pragma unroll
      for (int ahead = 0; ahead < kAheadRanks; ++ahead) {
        if (loaded[ahead] != 0) {
          body(loaded[ahead]);
        }
      }
    }
  }

  // The running mass through elements whose ordered bits are at least `threshold`; 0 where the windows do not tell.
  __device__ __forceinline__ uint64_t weight_from(uint32_t threshold) const {
    const float value = from_ordered_bits(threshold);
    const bool is_upper = value >= windows.upper_first;
    if (value > (is_upper ? windows.upper_end : windows.lower_end)) {
      return 0;
    }
    uint64_t sum = 0;
    for_each([&](uint64_t rank) {
      const float own = value_of(rank);
      sum += own >= value && (own >= windows.upper_first) == is_upper ? softmax.weight(own) : 0;
    });
    sum = block_sum(sum);
    if (is_upper) {
      return windows.before_upper + sum;
    }
    return before(kHalf).weight + sum;
  }

  // The first element at which the running mass reaches a target; none where it is not in a window, or where too many
  // are as large.
  template <class Measure>
  __device__ __forceinline__ CutPoint find_cut(uint64_t target) const {
    __shared__ int num_found;
    const int first = first_bin([&](int bin) { return Measure::of(before(bin + 1)) >= target; });
    if (first == kBins || Measure::of(before(first)) >= target) {
      return {0, {0, 0}};
    }
    if (threadIdx.x == 0) {
      num_found = 0;
    }
    __syncthreads();
    for_each([&](uint64_t rank) {
      if (bin(value_of(rank)) == first) {
        const int slot = atomicAdd(&num_found, 1);
        if (slot < kMaxCandidates) {
          candidates[slot] = rank;
        }
      }
    });
    __syncthreads();
    const int found = num_found;
    __syncthreads();  // `num_found` may be overwritten
    if (found > kMaxCandidates) {
      return {0, {0, 0}};
    }
    if (found <= kFew) {
      return cut_among_few<Measure>(found, before(first), target);
    }
    sort_descending(candidates, found);
    return RunningSums(candidates, found, softmax, before(first)).find_cut<Measure>(target);
  }

  // The same among so few candidates that each sums those before it sooner than they are sorted.
  template <class Measure>
  __device__ __forceinline__ CutPoint cut_among_few(int found, const Mass& above, uint64_t target) const {
    __shared__ unsigned long long weights[kFew];
    __shared__ CutPoint cut;
    const int own = static_cast<int>(threadIdx.x);
    if (own == 0) {
      cut = {0, {0, 0}};
    }
    if (own < found) {
      weights[own] = softmax.weight(value_of(candidates[own]));
    }
    __syncthreads();
    if (own < found) {
      const uint64_t rank = candidates[own];
      Mass through = above + Mass{1, weights[own]};
      for (int other = 0; other < found; ++other) {
        if (candidates[other] > rank) {
          through = through + Mass{1, weights[other]};
        }
      }
      const Mass before_it{through.count - 1, through.weight - weights[own]};
      if (Measure::of(before_it) < target && Measure::of(through) >= target) {
        cut = {rank, through};
      }
    }
    __syncthreads();
    const CutPoint result = cut;
    __syncthreads();  // `cut` and `weights` may be overwritten
    return result;
  }
};

}  // namespace aether
