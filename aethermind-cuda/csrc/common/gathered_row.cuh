// The elements that many blocks gather from a row's windows, and the selection among them: a histogram of their exact
// weights finds the few elements around a cut, which are then sorted.
#pragma once

#include "common/row_windows.cuh"

namespace aether {

constexpr int kGatherWarps = 8;  // of a block that gathers

// Compacts the ranks of the elements in a row's windows into `ranks`, in any order, and sums the weights of those
// before the windows of a deep row. A warp takes up to four segments at a time, of those whose maximum is large enough;
// the grid's second dimension divides the row. `windows` are in global memory.
struct WindowGather {
  static constexpr int kAhead = 4;
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
        upper_first(windows.upper_first),
        upper_end(windows.upper_end),
        lower_first(windows.lower_first),
        lower_end(windows.lower_end) {}

  // Writes the elements of a bit mask: this lane's four of each of four units. Lanes first write their places to shared
  // memory, so that all lanes share the work.
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
    slot = __shfl_sync(kFullWarp, slot, 0);
    for (unsigned i = static_cast<unsigned>(lane_index()); i < total && slot + i < capacity; i += kWarpSize) {
      const int place = places[warp_index()][i], bit = place / kWarpSize, lane = place % kWarpSize;
      const int begin = bit < 8 ? (bit < 4 ? begins[0] : begins[1]) : (bit < 12 ? begins[2] : begins[3]);
      const int index = begin + lane * kWide + bit % kWide;
      ranks[slot + i] = rank_of(row.logits[index], index);
    }
    __syncwarp();
  }

  // Calls choose(value, bit) for every logit of the segments that are read, which returns the bit or 0.
  template <class Choose>
  __device__ __forceinline__ void read(const uint32_t* maxima, int segment, int num_segments,
                                       const Choose& choose) const {
    const bool is_aligned = is_vectorizable(row.logits, 0);
    const uint32_t threshold = ordered_bits(lower_first);
    const int num_warps = static_cast<int>(gridDim.y * blockDim.x) / kWarpSize;
    const int warp = static_cast<int>(blockIdx.y * blockDim.x) / kWarpSize + warp_index();
    // Segments take turns among warps, as those with large maxima may be side by side.
    for (int first = warp; first < num_segments; first += num_warps * kWarpSize) {
      const int own = first + lane_index() * num_warps;
      unsigned left = __ballot_sync(kFullWarp, own < num_segments && maxima[own] >= threshold);
      while (left != 0) {
        int begins[kAhead];
        bool is_whole = is_aligned;
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          begins[ahead] = left != 0 ? (first + (__ffs(static_cast<int>(left)) - 1) * num_warps) * segment : row.size;
          left &= left - 1;
          is_whole = is_whole && begins[ahead] + segment <= row.size;
        }
        for (int unit = 0; unit < segment; unit += kSegmentUnit) {
          Vector<float> loaded[kAhead];
          if (is_whole) {
#pragma unroll
            for (int ahead = 0; ahead < kAhead; ++ahead) {
              loaded[ahead] = Vector<float>::load(row.logits + begins[ahead] + lane_index() * kWide);
            }
          } else {
#pragma unroll
            for (int ahead = 0; ahead < kAhead; ++ahead) {
              loaded[ahead] = load_unit(row.logits, begins[ahead], row.size, is_aligned);
            }
          }
          unsigned chosen = 0;
#pragma unroll
          for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
            for (int i = 0; i < kWide; ++i) {
              chosen |= choose(loaded[ahead].values[i], 1u << (ahead * kWide + i));
            }
          }
          append(begins, chosen);
#pragma unroll
          for (int ahead = 0; ahead < kAhead; ++ahead) {
            begins[ahead] += kSegmentUnit;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void read_top(const uint32_t* maxima, int segment, int num_segments) const {
    read(maxima, segment, num_segments, [&](float value, unsigned bit) { return value >= upper_first ? bit : 0u; });
  }

  __device__ __forceinline__ void read_deep(const uint32_t* maxima, int segment, int num_segments,
                                            const FastWeights& softmax) const {
    uint64_t before_upper = 0, before_lower = 0;
    read(maxima, segment, num_segments, [&](float value, unsigned bit) {
      const uint64_t weight = softmax.weight(value);
      const bool is_above = value >= upper_end, is_above_lower = value >= lower_end;
      before_upper += is_above ? weight : 0;
      before_lower += is_above_lower ? weight : 0;
      const bool is_upper = !is_above & (value >= upper_first), is_lower = !is_above_lower & (value >= lower_first);
      return (is_upper ? bit : 0u) | (is_lower ? bit : 0u);
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
    constexpr int kAheadRanks = 4;
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
    int first = 0, end = kBins;
    while (first < end) {
      const int middle = (first + end) / 2;
      if (Measure::of(before(middle + 1)) >= target) {
        end = middle;
      } else {
        first = middle + 1;
      }
    }
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
