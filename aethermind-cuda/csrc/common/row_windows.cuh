// Where the cut of a row's truncation and its token are, by value: windows that contain them, as far as the maxima of
// segments tell, or a sample of the row. A window from the top of the row is enough if the cut is among the first few
// thousand elements. Otherwise the token and the cut have a window each, and the weights before each are summed.
//
// Windows decide how long it takes to find a token, not which it is: a window that misses is noticed.
#pragma once

#include "common/row_candidates.cuh"
#include "common/sampling_params.cuh"

// Blocks of find_windows and sample_tokens per multiprocessor: two, where register use allows it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define AETHER_SAMPLER_BLOCKS 1
#else
#define AETHER_SAMPLER_BLOCKS 2
#endif

namespace aether {

enum class RowState : int {
  kDone,     // its token is known
  kTop,      // a window from the top of the row
  kDeep,     // windows with elements before them
  kUnknown,  // no windows
};

// Windows [first, end) of values. Every element of the upper window comes before those of the lower one.
struct Windows {
  unsigned long long before_upper;  // the weight of elements before a window, of deep rows
  unsigned long long before_lower;
  unsigned long long total;  // of the row, where the cut depends on it
  uint32_t min_p_bits;
  uint32_t num_gathered;
  float largest;
  float upper_first;
  float upper_end;
  float lower_first;  // the smallest value of both windows
  float lower_end;
  RowState state;
};

// The first bin for which a monotone predicate holds, or kBins: the lanes of a warp try 32 bins at a time.
template <class Holds>
__device__ __forceinline__ int first_bin(const Holds& holds) {
  constexpr int kStep = kBins / kWarpSize;
  const auto first_lane = [](bool is_held) {
    const unsigned lanes = __ballot_sync(kFullWarp, is_held);
    return lanes != 0 ? __ffs(static_cast<int>(lanes)) - 1 : kWarpSize;
  };
  const int begin = first_lane(holds(lane_index() * kStep + kStep - 1)) * kStep;
  if (begin == kBins) {
    return kBins;
  }
  static_assert(kStep == 2 * kWarpSize, "two bins per lane");
  const int lane = first_lane(holds(begin + 2 * lane_index() + 1));
  const bool is_even = __shfl_sync(kFullWarp, static_cast<int>(holds(begin + 2 * lane_index())), lane) != 0;
  return begin + 2 * lane + (is_even ? 0 : 1);
}

// Running sums over the bins of a histogram; for blocks of a thread for four bins.
struct RunningBins {
  Histogram& histogram;

  // Turns the masses of bins into those through bins.
  __device__ __forceinline__ explicit RunningBins(Histogram& histogram) : histogram(histogram) {
    constexpr int kPerThread = kBins / kSortingThreads;
    const int first = static_cast<int>(threadIdx.x) * kPerThread;
    Mass sum{0, 0};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      sum = sum + histogram.mass(first + i);
    }
    Mass running{block_prefix_sum(sum.count).before, block_prefix_sum(sum.weight).before};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      running = running + histogram.mass(first + i);
      histogram.set(first + i, running);
    }
    __syncthreads();
  }

  __device__ __forceinline__ Mass before(int bin) const { return bin > 0 ? histogram.mass(bin - 1) : Mass{0, 0}; }

  // The first bin for which `reaches(mass through the bin)` holds, or kBins. All lanes of a warp call it.
  template <class Reaches>
  __device__ __forceinline__ int first_bin(const Reaches& reaches) const {
    return aether::first_bin([&](int bin) { return reaches(histogram.mass(bin)); });
  }

  // The position at which the running sum is `target`, by linear interpolation inside a bin.
  template <class Measure>
  __device__ __forceinline__ float position_of(double target) const {
    if (target <= 0.0) {
      return 0.0f;
    }
    const int bin = first_bin([&](const Mass& through) { return static_cast<double>(Measure::of(through)) >= target; });
    if (bin == kBins) {
      return static_cast<float>(kBins);
    }
    const double reached = static_cast<double>(Measure::of(before(bin)));
    const double own = static_cast<double>(Measure::of(histogram.mass(bin))) - reached;
    return static_cast<float>(bin) + static_cast<float>((target - reached) / own);
  }

  // The running sum at a position.
  template <class Measure>
  __device__ __forceinline__ double sum_at(float position) const {
    const int bin = static_cast<int>(fminf(fmaxf(position, 0.0f), static_cast<float>(kBins - 1)));
    const double reached = static_cast<double>(Measure::of(before(bin)));
    const double own = static_cast<double>(Measure::of(histogram.mass(bin))) - reached;
    return reached + own * static_cast<double>(fminf(fmaxf(position - static_cast<float>(bin), 0.0f), 1.0f));
  }
};

// Bins of equal width below the largest logit of a row.
struct ValueBins {
  float largest;
  float scale;  // bins per unit of a logit

  __device__ __forceinline__ ValueBins(float largest, float range)
      : largest(largest), scale(range > 0.0f ? __fdiv_rn(static_cast<float>(kBins - 1), range) : 0.0f) {}

  // Monotone in the value, as rounding is.
  __device__ __forceinline__ float position(float value) const { return __fmul_rn(__fsub_rn(largest, value), scale); }
  __device__ __forceinline__ float value_at(float position) const {
    return __fsub_rn(largest, __fdiv_rn(position, scale));
  }
};

// Finds the windows of a row under any limits.
struct WindowSearch {
  static constexpr int kSamples = 16384;
  static constexpr int kSector = 16;  // elements read together: what memory transfers at once
  static constexpr float kStandardErrors = 5.0f;

  Histogram& histogram;
  const Row& row;
  const uint32_t* maxima;
  int segment;
  int num_segments;
  const SoftmaxWeights& softmax;
  const SamplingParams& params;
  int capacity;  // of elements in windows
  Windows& windows;

  // Half of a window around a cut or a token at most; two windows and a few elements more fit.
  __device__ __forceinline__ double max_half() const { return 0.21 * capacity; }

  __device__ __forceinline__ void write(RowState state, float upper_first, float upper_end, float lower_first,
                                        float lower_end) const {
    // The sign of a difference from a bound tells which is larger, unless it is that of -0 and 0.
    const auto bound = [](float value) { return value == 0.0f ? -0.0f : value; };
    if (threadIdx.x == 0) {
      windows = {0,
                 0,
                 params.total,
                 params.min_p_bits,
                 0,
                 softmax.largest,
                 bound(upper_first),
                 bound(upper_end),
                 bound(lower_first),
                 bound(lower_end),
                 state};
    }
  }

  // A window of all elements down to `first`.
  __device__ __forceinline__ void write_top(float first) const {
    write(RowState::kTop, first, -Max::kNeutral, first, first);
  }

  __device__ __forceinline__ void place() const {
    const float lowest = from_ordered_bits(min_weighted_bits(softmax.largest, params.temperature));
    // top_p is relative to the mass that top_k keeps, before min_p is applied.
    const bool is_limited = params.has_min() && !(params.has_k() && params.has_p());
    const float limit = is_limited ? fmaxf(lowest, from_ordered_bits(params.min_p_bits)) : lowest;
    if (row.size <= kMaxCandidates) {
      write_top(limit);
      return;
    }
    const float widest = 40.0f * params.temperature;
    const float range = softmax.largest - smallest_of_maxima(maxima, num_segments);
    int num_reaching = 0;
    const float first = reached_by_maxima(ValueBins(softmax.largest, fminf(widest, range)), limit, num_reaching);
    if (num_reaching > 0 && num_reaching <= capacity / segment) {
      write_top(first);
      return;
    }
    const ValueBins bins(softmax.largest, fminf(widest, 8.0f * range));
    if (bins.scale > 0.0f) {
      place_by_sample(bins, lowest, limit, num_reaching > 0 ? first : -Max::kNeutral);
    } else {
      write(RowState::kUnknown, 0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  // k segments with maxima above a value have k elements above it, and those weigh at least as much as the maxima. So a
  // cut that the maxima reach is known to be above the value. Returns it, and how many maxima are above it, 0 if none.
  __device__ __forceinline__ float reached_by_maxima(const ValueBins& bins, float limit, int& num_reaching) const {
    histogram.clear();
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
      const float value = from_ordered_bits(maxima[i]), position = bins.position(value);
      if (position < static_cast<float>(kBins)) {
        histogram.add(static_cast<int>(position), softmax.weight(value));
      }
    }
    __syncthreads();
    const RunningBins sums(histogram);
    int bin = kBins;
    if (params.has_k()) {
      bin = sums.first_bin([&](const Mass& sum) { return sum.count >= static_cast<uint64_t>(params.top_k); });
    } else if (params.has_p()) {
      const uint64_t target = params.mass_target();
      bin = sums.first_bin([&](const Mass& sum) { return sum.weight >= target; });
    }
    const float limit_position = bins.position(limit);
    if (limit_position < static_cast<float>(bin)) {
      bin = static_cast<int>(limit_position);
    }
    num_reaching = bin < kBins ? static_cast<int>(sums.histogram.mass(bin).count) : 0;
    __syncthreads();  // the histogram may be overwritten
    // Some of the next bin, as positions are rounded.
    return fmaxf(bins.scale > 0.0f ? bins.value_at(static_cast<float>(bin) + 1.01f) : limit, limit);
  }

  // A histogram of a sample of the row; returns the elements of the row for one of the sample.
  __device__ __forceinline__ double fill_by_sample(const ValueBins& bins) const {
    constexpr int kAhead = 4, kWide = Vector<float>::size, kVectors = kSector / kWide;
    const int num_sectors = row.size / kSector, threads = static_cast<int>(blockDim.x);
    const int stride = (num_sectors * kSector + kSamples - 1) / kSamples;
    const int num_vectors = (num_sectors + stride - 1) / stride * kVectors;
    const bool is_aligned = is_vectorizable(row.logits, 0);
    histogram.clear();
    __syncthreads();
    for (int first = static_cast<int>(threadIdx.x); first < num_vectors; first += kAhead * threads) {
      Vector<float> loaded[kAhead];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int i = first + ahead * threads;
        const float* logits = row.logits + i / kVectors * stride * kSector + i % kVectors * kWide;
        if (i < num_vectors && is_aligned) {
          loaded[ahead] = Vector<float>::load(logits);
        } else {
#pragma unroll
          for (int j = 0; j < kWide; ++j) {
            loaded[ahead].values[j] = i < num_vectors ? logits[j] : Max::kNeutral;
          }
        }
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          const float position = bins.position(loaded[ahead].values[j]);
          if (position < static_cast<float>(kBins)) {
            atomicAdd(&histogram.counts[Histogram::padded_bin(static_cast<int>(position))], 1u);
          }
        }
      }
    }
    __syncthreads();
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += threads) {
      const uint64_t count = histogram.mass(bin).count;
      histogram.set(bin, {count, count * softmax.weight(bins.value_at(static_cast<float>(bin) + 0.5f))});
    }
    __syncthreads();
    return static_cast<double>(row.size) / (num_vectors * kWide);
  }

  // Several standard errors of a position, in elements of the row, where the elements behind it weigh `behind`: these
  // are estimated from the sample, and none of them weighs more than one at the position.
  __device__ __forceinline__ double half_width(const ValueBins& bins, double ratio, double behind,
                                               float position) const {
    const double own = static_cast<double>(softmax.weight(bins.value_at(position)));
    // The sample is a part of the row, so its errors are those of the rest.
    const float variance = static_cast<float>((ratio - 1.0) * behind / fmax(own, 1.0));
    return fmin(max_half(), static_cast<double>(kStandardErrors * __fsqrt_rn(variance)) + 64.0);
  }

  // Whether a window from the top down to a position, which the sample tells, has few enough elements.
  __device__ __forceinline__ bool is_small(double rank, double ratio) const {
    return with_errors(rank, ratio) <= 0.8 * capacity;
  }

  // A rank and several standard errors of its estimate.
  __device__ __forceinline__ static double with_errors(double rank, double ratio) {
    return rank + static_cast<double>(kStandardErrors * __fsqrt_rn(static_cast<float>(ratio * rank))) + 64.0;
  }

  // `reached` is a value that the cut is above of; infinity if none is known.
  __device__ __forceinline__ void place_by_sample(const ValueBins& bins, float lowest, float limit,
                                                  float reached) const {
    const double ratio = fill_by_sample(bins);
    const RunningBins sums(histogram);
    if (warp_index() != 0) {
      return;
    }
    // A position so many elements of the row after another one.
    const auto moved = [&](float position, double elements) {
      return sums.position_of<ByCount>(sums.sum_at<ByCount>(position) + elements / ratio);
    };
    const auto value_of = [&](float position) { return fmaxf(bins.value_at(position), lowest); };
    const auto rank_at = [&](float position) { return ratio * sums.sum_at<ByCount>(position); };
    if (reached < -Max::kNeutral && is_small(rank_at(bins.position(reached)), ratio)) {
      write_top(reached);
      return;
    }
    if (params.has_k()) {
      const double last = with_errors(params.top_k, ratio);
      if (last <= 0.8 * capacity) {
        write_top(fmaxf(value_of(sums.position_of<ByCount>(last / ratio)), limit));
      } else {
        write(RowState::kUnknown, 0.0f, 0.0f, 0.0f, 0.0f);
      }
      return;
    }
    const double sampled = static_cast<double>(sums.histogram.mass(kBins - 1).weight);
    // The running sum of the sample at a mass of the row. If that of the whole row is known, the sample estimates the
    // mass behind the position: it lacks the heaviest elements as often as not.
    const auto sampled_at = [&](double mass) {
      return params.has_p() ? sampled - (static_cast<double>(params.total) - mass) / ratio : mass / ratio;
    };
    const auto mass_at = [&](float position) {
      const double sum = sums.sum_at<ByWeight>(position);
      return params.has_p() ? static_cast<double>(params.total) - ratio * (sampled - sum) : ratio * sum;
    };
    const auto half_of = [&](double mass, float position) {
      return params.has_p() ? half_width(bins, ratio, static_cast<double>(params.total) - mass, position) : max_half();
    };
    // The window of the cut; an empty one at min_p's limit, if that is the cut.
    float begin = fminf(bins.position(limit), static_cast<float>(kBins)), end = begin;
    double kept = mass_at(begin);
    bool is_at_limit = true;
    if (params.has_p()) {
      const double target = static_cast<double>(params.mass_target());
      const float cut = sums.position_of<ByWeight>(sampled_at(target));
      const double half = half_of(target, cut);
      const float cut_begin = moved(cut, -half);
      if (cut_begin < begin) {
        const float cut_end = moved(cut, half);
        begin = cut_begin;
        is_at_limit = end < cut_end;
        end = fminf(end, cut_end);
        kept = fmin(kept, target);
      }
    }
    const float last = is_at_limit ? limit : value_of(end);
    if (is_small(rank_at(end), ratio)) {
      write_top(last);
      return;
    }
    const double target = params.random * kept;
    const float token = sums.position_of<ByWeight>(sampled_at(target));
    const double half = half_of(target, token);
    float upper_begin = moved(token, -half), upper_end = moved(token, half);
    if (upper_end >= begin) {
      upper_begin = fminf(upper_begin, begin);
      upper_end = begin = end;
    }
    // Bounds descend, however values of positions are rounded.
    const float lower_end = begin == end ? last : fmaxf(value_of(begin), last);
    const float upper_first = upper_end == end ? last : fmaxf(value_of(upper_end), lower_end);
    const float first = upper_begin > 0.0f ? fmaxf(value_of(upper_begin), upper_first) : -Max::kNeutral;
    write(RowState::kDeep, upper_first, first, last, lower_end);
  }
};

}  // namespace aether
