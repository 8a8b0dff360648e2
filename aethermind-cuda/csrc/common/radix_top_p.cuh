// Radix select for top-k and top-p over float32 logits: finds the position in the descending order of a row at which
// the running count or mass reaches a target, without sorting, by histograms of three digits. It handles any row but
// reads it several times.
#pragma once

#include "common/softmax_weights.cuh"

namespace aether {

constexpr int kBins = 2048;

// The number of elements and their total weight.
struct Mass {
  uint64_t count;
  uint64_t weight;

  __device__ __forceinline__ Mass operator+(const Mass& other) const {
    return {count + other.count, weight + other.weight};
  }
};

struct ByCount {
  __device__ __forceinline__ static uint64_t of(const Mass& mass) { return mass.count; }
};
struct ByWeight {
  __device__ __forceinline__ static uint64_t of(const Mass& mass) { return mass.weight; }
};

// A histogram of masses in shared memory. 64-bit sums are built from 32-bit atomics. One padding slot follows every 32
// bins, so that lanes reading 64 consecutive bins each have few bank conflicts.
struct Histogram {
  static constexpr int kPaddedBins = kBins + kBins / 32;
  unsigned counts[kPaddedBins];
  unsigned low[kPaddedBins];
  unsigned high[kPaddedBins];

  __device__ __forceinline__ static int padded_bin(int bin) { return bin + bin / 32; }

  __device__ __forceinline__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kPaddedBins; i += static_cast<int>(blockDim.x)) {
      counts[i] = low[i] = high[i] = 0;
    }
  }

  __device__ __forceinline__ void add(int bin, uint64_t weight, bool is_counted = true) {
    const int slot = padded_bin(bin);
    if (is_counted) {
      atomicAdd(&counts[slot], 1u);
    }
    if (weight == 0) {
      return;
    }
    const unsigned lower = static_cast<unsigned>(weight);
    const unsigned before = atomicAdd(&low[slot], lower);
    const unsigned upper = static_cast<unsigned>(weight >> 32) + (before + lower < before ? 1 : 0);
    if (upper != 0) {
      atomicAdd(&high[slot], upper);
    }
  }

  __device__ __forceinline__ Mass mass(int bin) const {
    const int slot = padded_bin(bin);
    return {counts[slot], static_cast<uint64_t>(high[slot]) << 32 | low[slot]};
  }

  __device__ __forceinline__ void set(int bin, const Mass& mass) {
    const int slot = padded_bin(bin);
    counts[slot] = static_cast<unsigned>(mass.count);
    low[slot] = static_cast<unsigned>(mass.weight);
    high[slot] = static_cast<unsigned>(mass.weight >> 32);
  }
};

// A bin and the mass before it; `bin` is -1 where the target is not reached.
struct FoundBin {
  int bin;
  Mass before;
};

// Finds the first of bins order(0), order(1), … order(kBins - 1) where the running sum, starting at `before`, reaches
// the target. All threads of the block call it and get the result.
template <class Measure, class Order>
__device__ __forceinline__ FoundBin find_bin(const Histogram& histogram, const Order& order, Mass before,
                                             uint64_t target) {
  constexpr int kBinsPerLane = kBins / kWarpSize;
  __shared__ FoundBin found;
  if (warp_index() == 0) {
    // Each lane sums 64 bins; the lane that contains the target scans them.
    Mass lane_mass{0, 0};
    for (int i = 0; i < kBinsPerLane; ++i) {
      lane_mass = lane_mass + histogram.mass(order(lane_index() * kBinsPerLane + i));
    }
    Mass sum = lane_mass;
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const Mass other{__shfl_up_sync(kFullWarp, static_cast<unsigned long long>(sum.count), distance),
                       __shfl_up_sync(kFullWarp, static_cast<unsigned long long>(sum.weight), distance)};
      if (lane_index() >= distance) {
        sum = sum + other;
      }
    }
    Mass reached{before.count + sum.count - lane_mass.count, before.weight + sum.weight - lane_mass.weight};
    const bool is_last = Measure::of(reached + lane_mass) >= target;
    const bool is_first = lane_index() == 0 || Measure::of(reached) < target;
    if (is_last && is_first) {
      int i = 0;
      for (; i < kBinsPerLane - 1 &&
             Measure::of(reached + histogram.mass(order(lane_index() * kBinsPerLane + i))) < target;
           ++i) {
        reached = reached + histogram.mass(order(lane_index() * kBinsPerLane + i));
      }
      found = {order(lane_index() * kBinsPerLane + i), reached};
    }
    if (lane_index() == kWarpSize - 1 && !is_last) {
      found = {-1, before};
    }
  }
  __syncthreads();
  const FoundBin result = found;
  __syncthreads();  // the histogram and `found` may be overwritten
  return result;
}

struct Row {
  const float* logits;
  int size;
};

// A 32-bit part of a rank, and the mass of the elements with a larger part.
struct Position {
  uint32_t part;
  Mass before;
};

// Finds the largest part at which the running sum over descending parts reaches the target. `part_of(rank, part)`
// returns whether an element counts and its part.
template <class Measure, class PartOf>
__device__ __forceinline__ Position radix_select(Histogram& histogram, const Row& row, const SoftmaxWeights& softmax,
                                                 const PartOf& part_of, uint64_t target) {
  Position position{0, {0, 0}};
  constexpr int kShifts[] = {21, 10, 0};
#pragma unroll
  for (int level = 0; level < 3; ++level) {
    const int shift = kShifts[level];
    const uint32_t mask = level < 2 ? 2047 : 1023;
    const int previous_shift = level == 0 ? 32 : kShifts[level - 1];
    histogram.clear();
    __syncthreads();
    for_each_logit<kShallowPrefetchVectors>(row.logits, row.size, [&](float value, int index) {
      const uint64_t rank = rank_of(value, index);
      uint32_t part;
      if (part_of(rank, part) &&
          (level == 0 || part >> (previous_shift % 32) == position.part >> (previous_shift % 32))) {
        histogram.add(static_cast<int>(part >> shift & mask), softmax.weight(value));
      }
    });
    __syncthreads();
    const FoundBin found = find_bin<Measure>(histogram, [](int i) { return kBins - 1 - i; }, position.before, target);
    position.part |= static_cast<uint32_t>(found.bin < 0 ? 0 : found.bin) << shift;
    position.before = found.before;
  }
  return position;
}

// Finds the value at which the running sum over descending values reaches the target.
template <class Measure>
__device__ __forceinline__ Position radix_select_value(Histogram& histogram, const Row& row,
                                                       const SoftmaxWeights& softmax, uint64_t target) {
  const auto value_part = [](uint64_t rank, uint32_t& part) {
    part = static_cast<uint32_t>(rank >> 32);
    return true;
  };
  return radix_select<Measure>(histogram, row, softmax, value_part, target);
}

// The index of the `number`-th element (from 1) with this value, by ascending index.
__device__ __forceinline__ int tied_index(Histogram& histogram, const Row& row, const SoftmaxWeights& softmax,
                                          uint32_t value, uint64_t number) {
  const auto index_part = [value](uint64_t rank, uint32_t& part) {
    part = static_cast<uint32_t>(rank);
    return static_cast<uint32_t>(rank >> 32) == value;
  };
  return index_of(radix_select<ByCount>(histogram, row, softmax, index_part, number).part);
}

}  // namespace aether
