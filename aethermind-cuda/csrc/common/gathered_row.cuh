// The elements that many blocks gather from a row's windows, and the selection among them: a histogram of their exact
// weights finds the few elements around a cut, which are then sorted.
#pragma once

#include "common/row_windows.cuh"

namespace aether {

constexpr int kGatherWarps = 8;  // of a block that gathers

// The segments that a warp reads of a row, four units of 128 logits at a time: those whose maximum is large enough.
// They take turns among the warps of a grid column, as segments with large maxima may be side by side.
struct SegmentCursor {
  static constexpr int kAhead = 4;

  const uint32_t* maxima;
  uint32_t threshold;
  int segment, num_segments, size;
  int first, num_warps;
  int unit;       // in the segments of `begins`
  unsigned left;  // segments of `first` and the 31 of this warp behind it that are still to be read
  int begins[kAhead];

  __device__ __forceinline__ SegmentCursor(const uint32_t* maxima, uint32_t threshold, int segment, int num_segments,
                                           int size)
      : maxima(maxima), threshold(threshold), segment(segment), num_segments(num_segments), size(size), unit(segment) {
    num_warps = static_cast<int>(gridDim.y * blockDim.x) / kWarpSize;
    first = static_cast<int>(blockIdx.y * blockDim.x) / kWarpSize + warp_index();
    left = chosen();
  }

  __device__ __forceinline__ unsigned chosen() const {
    const int own = first + lane_index() * num_warps;
    return __ballot_sync(kFullWarp, own < num_segments && maxima[own] >= threshold);
  }

  // Whether there are units to read, which begin at `begins`: the row's size where there are fewer than four.
  __device__ __forceinline__ bool next() {
    unit += kSegmentUnit;
    if (unit < segment) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        begins[ahead] += kSegmentUnit;
      }
      return true;
    }
    unit = 0;
    while (left == 0) {
      first += num_warps * kWarpSize;
      if (first >= num_segments) {
        return false;
      }
      left = chosen();
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      begins[ahead] = left != 0 ? (first + (__ffs(static_cast<int>(left)) - 1) * num_warps) * segment : size;
      left &= left - 1;
    }
    return true;
  }
};

// Compacts the ranks of the elements in a row's windows into `ranks`, in any order, and sums the weights of those
// before the windows of a deep row. The grid's second dimension divides the row. `windows` are in global memory.
struct WindowGather {
  static constexpr int kAhead = SegmentCursor::kAhead;
  static constexpr int kWide = Vector<float>::size;

  Windows& windows;
  unsigned long long* ranks;
  unsigned capacity;
  const Row& row;
  float upper_first, upper_end, lower_first, lower_end;

  __device__ __forceinline__ WindowGather(Windows& windows, unsigned long long* ranks, int capacity, const Row& row)
      : windows(windows),
        ranks(ranks),
        capacity(static_cast<unsigned>(capacity)),
        row(row),
        upper_first(bound(windows.upper_first)),
        upper_end(bound(windows.upper_end)),
        lower_first(bound(windows.lower_first)),
        lower_end(bound(windows.lower_end)) {}

  // The sign of a difference tells whether a value is below a bound, unless it is that of -0 and 0.
  __device__ __forceinline__ static float bound(float value) { return value == 0.0f ? -0.0f : value; }

  // Writes the elements of a bit mask: this lane's four of each of four units, the first in bit 15. Lanes first write
  // their places to shared memory, so that all lanes share the work.
  __device__ __forceinline__ void append(const int (&begins)[kAhead], unsigned chosen) const {
    __shared__ uint16_t places[kGatherWarps][kAhead * kSegmentUnit];
    const unsigned own = __popc(chosen);
    unsigned through = own;
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const unsigned other = __shfl_up_sync(kFullWarp, through, distance);
      through += lane_index() >= distance ? other : 0;
    }
    const unsigned total = __shfl_sync(kFullWarp, through, kWarpSize - 1);
    if (total == 0) {
      return;
    }
    unsigned slot = 0;
    if (lane_index() == 0) {
      slot = atomicAdd(&windows.num_gathered, total);
    }
    uint16_t* next = places[warp_index()] + through - own;
    for (; chosen != 0; chosen &= chosen - 1) {
      *next++ = static_cast<uint16_t>((__ffs(static_cast<int>(chosen)) - 1) * kWarpSize + lane_index());
    }
    __syncwarp();
    const auto rank_at = [&](unsigned i) {
      const int place = places[warp_index()][i], number = kAhead * kWide - 1 - place / kWarpSize;
      const int begin = number < 8 ? (number < 4 ? begins[0] : begins[1]) : (number < 12 ? begins[2] : begins[3]);
      const int index = begin + place % kWarpSize * kWide + number % kWide;
      return rank_of(row.logits[index], index);
    };
    // The first is read while the slot is awaited.
    unsigned i = static_cast<unsigned>(lane_index());
    uint64_t rank = i < total ? rank_at(i) : 0;
    slot = __shfl_sync(kFullWarp, slot, 0);
    while (i < total && slot + i < capacity) {
      ranks[slot + i] = rank;
      i += kWarpSize;
      rank = i < total ? rank_at(i) : 0;
    }
    __syncwarp();
  }

  // Calls sum(value) and is_chosen(value) for every logit of the segments that are read. The latter's result is a sign
  // bit.
  template <class Sum, class IsChosen>
  __device__ __forceinline__ void read(const uint32_t* maxima, int segment, int num_segments, const Sum& sum,
                                       const IsChosen& is_chosen) const {
    const bool is_aligned = is_vectorizable(row.logits, 0);
    SegmentCursor cursor(maxima, ordered_bits(lower_first), segment, num_segments, row.size);
    Vector<float> loaded[kAhead];
    const auto load = [&] {
      bool is_whole = is_aligned;
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        is_whole = is_whole && cursor.begins[ahead] + kSegmentUnit <= row.size;
      }
      if (is_whole) {
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          loaded[ahead] = Vector<float>::load(row.logits + cursor.begins[ahead] + lane_index() * kWide);
        }
      } else {
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          loaded[ahead] = load_unit(row.logits, cursor.begins[ahead], row.size, is_aligned);
        }
      }
    };
    bool has_units = cursor.next();
    if (has_units) {
      load();
    }
    while (has_units) {
      unsigned chosen = 0;
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const float value = loaded[ahead].values[i];
          chosen = __funnelshift_l(is_chosen(value), chosen, 1);
          sum(value);
        }
      }
      int begins[kAhead];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        begins[ahead] = cursor.begins[ahead];
      }
      // The next units are on their way while these elements are written.
      has_units = cursor.next();
      if (has_units) {
        load();
      }
      append(begins, chosen);
    }
  }

  // A number whose sign bit is set if a value is below a bound.
  __device__ __forceinline__ static uint32_t below(float value, float bound) {
    return __float_as_uint(__fsub_rn(value, bound));
  }

  __device__ __forceinline__ void read_top(const uint32_t* maxima, int segment, int num_segments) const {
    read(maxima, segment, num_segments, [](float) {}, [&](float value) { return ~below(value, upper_first); });
  }

  __device__ __forceinline__ void read_deep(const uint32_t* maxima, int segment, int num_segments,
                                            const FastWeights& softmax) const {
    uint64_t before_upper = 0, before_lower = 0;
    read(
        maxima, segment, num_segments,
        [&](float value) {
          const uint64_t weight = softmax.weight(value >= lower_end ? value : Max::kNeutral);
          before_lower += weight;
          before_upper += value >= upper_end ? weight : 0;
        },
        // Bounds descend, so a value in a window is below an odd number of them.
        [&](float value) {
          return below(value, upper_end) ^ below(value, upper_first) ^ below(value, lower_end) ^
                 below(value, lower_first);
        });
    before_upper = block_sum(before_upper);
    before_lower = block_sum(before_lower);
    if (threadIdx.x == 0) {
      atomicAdd(&windows.before_upper, static_cast<unsigned long long>(before_upper));
      atomicAdd(&windows.before_lower, static_cast<unsigned long long>(before_lower));
    }
  }
};

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

  Histogram& histogram;
  Candidates& candidates;
  const unsigned long long* ranks;
  int count;
  const SoftmaxWeights& softmax;
  const Windows& windows;
  ValueBins upper, lower;

  __device__ __forceinline__ BinnedElements(Histogram& histogram, Candidates& candidates,
                                            const unsigned long long* ranks, int count, const SoftmaxWeights& softmax,
                                            const Windows& windows)
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
    for_each([&](uint64_t rank) { histogram.add(bin(value_of(rank)), softmax.weight(value_of(rank))); });
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
    sort_descending(candidates, found);
    return RunningSums(candidates, found, softmax, before(first)).find_cut<Measure>(target);
  }
};

}  // namespace aether
