// Radix select for top-k and top-p: finds the position in the descending order of a row at which the running count or
// mass reaches a target, without sorting, by histograms of three digits. It handles any row but reads it several times.
#pragma once

#include "common/row_weights.cuh"

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
  static constexpr int kPlaces = kBins + kBins / 32;
  unsigned counts[kPlaces];
  unsigned low[kPlaces];
  unsigned high[kPlaces];

  __device__ __forceinline__ static int place(int bin) { return bin + bin / 32; }

  __device__ __forceinline__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kPlaces; i += static_cast<int>(blockDim.x)) {
      counts[i] = low[i] = high[i] = 0;
    }
  }

  __device__ __forceinline__ void add(int bin, uint64_t weight) {
    const int own = place(bin);
    atomicAdd(&counts[own], 1u);
    if (weight == 0) {
      return;
    }
    const unsigned lower = static_cast<unsigned>(weight);
    const unsigned before = atomicAdd(&low[own], lower);
    const unsigned upper = static_cast<unsigned>(weight >> 32) + (before + lower < before ? 1 : 0);
    if (upper != 0) {
      atomicAdd(&high[own], upper);
    }
  }

  __device__ __forceinline__ Mass mass(int bin) const {
    const int own = place(bin);
    return {counts[own], static_cast<uint64_t>(high[own]) << 32 | low[own]};
  }
};

// A bin and the mass before it; `bin` is -1 where the target is not reached.
struct Found {
  int bin;
  Mass before;
};

// Finds the first of bins order(0), order(1), … order(kBins - 1) where the running sum, starting at `before`, reaches
// the target. All threads of the block call it and get the result.
template <class Measure, class Order>
__device__ __forceinline__ Found find_bin(const Histogram& histogram, const Order& order, Mass before,
                                          uint64_t target) {
  constexpr int kPart = kBins / kWarpSize;
  __shared__ Found found;
  if (warp_index() == 0) {
    // Each lane sums 64 bins; the lane that contains the target scans them.
    Mass own{0, 0};
    for (int i = 0; i < kPart; ++i) {
      own = own + histogram.mass(order(lane_index() * kPart + i));
    }
    Mass sum = own;
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const Mass other{__shfl_up_sync(kFullWarp, static_cast<unsigned long long>(sum.count), distance),
                       __shfl_up_sync(kFullWarp, static_cast<unsigned long long>(sum.weight), distance)};
      if (lane_index() >= distance) {
        sum = sum + other;
      }
    }
    Mass reached{before.count + sum.count - own.count, before.weight + sum.weight - own.weight};
    const bool is_last = Measure::of(reached + own) >= target;
    const bool is_first = lane_index() == 0 || Measure::of(reached) < target;
    if (is_last && is_first) {
      int i = 0;
      for (; i < kPart - 1 && Measure::of(reached + histogram.mass(order(lane_index() * kPart + i))) < target; ++i) {
        reached = reached + histogram.mass(order(lane_index() * kPart + i));
      }
      found = {order(lane_index() * kPart + i), reached};
    }
    if (lane_index() == kWarpSize - 1 && !is_last) {
      found = {-1, before};
    }
  }
  __syncthreads();
  const Found result = found;
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
__device__ __forceinline__ Position radix_select(Histogram& histogram, const Row& row, const Weighing& weighing,
                                                 const PartOf& part_of, uint64_t target) {
  Position position{0, {0, 0}};
  constexpr int kShifts[] = {21, 10, 0};
#pragma unroll
  for (int level = 0; level < 3; ++level) {
    const int shift = kShifts[level];
    const uint32_t mask = level < 2 ? 2047 : 1023;
    const int above = level == 0 ? 32 : kShifts[level - 1];
    histogram.clear();
    __syncthreads();
    for_each_logit<kFewVectorsAhead>(row.logits, row.size, [&](float value, int index) {
      const uint64_t rank = rank_of(value, index);
      uint32_t part;
      if (part_of(rank, part) && (level == 0 || part >> (above % 32) == position.part >> (above % 32))) {
        histogram.add(static_cast<int>(part >> shift & mask), weighing.weight(value));
      }
    });
    __syncthreads();
    const Found found = find_bin<Measure>(histogram, [](int i) { return kBins - 1 - i; }, position.before, target);
    position.part |= static_cast<uint32_t>(found.bin < 0 ? 0 : found.bin) << shift;
    position.before = found.before;
  }
  return position;
}

// Finds the value at which the running sum over descending values reaches the target.
template <class Measure>
__device__ __forceinline__ Position radix_select_value(Histogram& histogram, const Row& row, const Weighing& weighing,
                                                       uint64_t target) {
  const auto value_part = [](uint64_t rank, uint32_t& part) {
    part = static_cast<uint32_t>(rank >> 32);
    return true;
  };
  return radix_select<Measure>(histogram, row, weighing, value_part, target);
}

// The index of the `number`-th element (from 1) with this value, by ascending index.
__device__ __forceinline__ int tied_index(Histogram& histogram, const Row& row, const Weighing& weighing,
                                          uint32_t value, uint64_t number) {
  const auto index_part = [value](uint64_t rank, uint32_t& part) {
    part = static_cast<uint32_t>(rank);
    return static_cast<uint32_t>(rank >> 32) == value;
  };
  return index_of(radix_select<ByCount>(histogram, row, weighing, index_part, number).part);
}

}  // namespace aether
