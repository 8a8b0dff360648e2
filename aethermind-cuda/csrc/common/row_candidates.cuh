// The candidates of top-k or top-p: elements compacted from a row, few enough to be sorted in shared memory (bitonic
// sort), and their running sums.
#pragma once

#include "common/radix_top_p.cuh"
#include "common/row_segments.cuh"

namespace aether {

constexpr int kMaxCandidates = 2048;
constexpr int kSortingThreads = 512;
using Candidates = unsigned long long[kMaxCandidates];

// Compacts the ranks of elements whose ordered bits are at least `threshold` into `candidates`, from the segments whose
// maximum is; returns their number, which may exceed its capacity.
__device__ __forceinline__ int gather_from_segments(Candidates& candidates, const Row& row, const uint32_t* maxima,
                                                    int segment, int num_segments, uint32_t threshold) {
  constexpr int kAhead = 4;
  __shared__ int count;
  if (threadIdx.x == 0) {
    count = 0;
  }
  __syncthreads();
  const bool is_aligned = is_vectorizable(row.logits, 0);
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  // Segments take turns among warps, as those with large maxima may be side by side.
  for (int first = warp_index(); first < num_segments; first += num_warps * kWarpSize) {
    const int own = first + lane_index() * num_warps;
    unsigned chosen = __ballot_sync(kFullWarp, own < num_segments && maxima[own] >= threshold);
    while (chosen != 0) {
      int begins[kAhead];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        begins[ahead] = chosen != 0 ? (first + (__ffs(static_cast<int>(chosen)) - 1) * num_warps) * segment : row.size;
        chosen &= chosen - 1;
      }
      for (int unit = 0; unit < segment; unit += kSegmentUnit) {
        Vector<float> loaded[kAhead];
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          loaded[ahead] = load_unit(row.logits, begins[ahead] + unit, row.size, is_aligned);
        }
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
          for (int i = 0; i < Vector<float>::size; ++i) {
            const float value = loaded[ahead].values[i];
            const int index = begins[ahead] + unit + lane_index() * Vector<float>::size + i;
            if (index < row.size && ordered_bits(value) >= threshold) {
              const int slot = atomicAdd(&count, 1);
              if (slot < kMaxCandidates) {
                candidates[slot] = rank_of(value, index);
              }
            }
          }
        }
      }
    }
  }
  __syncthreads();
  const int result = count;
  __syncthreads();  // `count` may be overwritten
  return result;
}

// Sorts the first `count` numbers in descending order (bitonic sort) and zeroes the rest.
__device__ __forceinline__ void sort_descending(Candidates& numbers, int count) {
  int size = 2 * kWarpSize;
  while (size < count) {
    size *= 2;
  }
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) {
    numbers[i] = 0;
  }
  __syncthreads();
  for (int length = 2; length <= size; length *= 2) {
    for (int stride = length / 2; stride > 0; stride /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += static_cast<int>(blockDim.x)) {
        const int i = 2 * pair - (pair & (stride - 1));
        const unsigned long long a = numbers[i], b = numbers[i + stride];
        if ((a < b) == ((i & length) == 0)) {
          numbers[i] = b;
          numbers[i + stride] = a;
        }
      }
      // Pairs at most a warp apart belong to one warp in this step and the next, so no block barrier is needed.
      const int next = stride > 1 ? stride / 2 : length;
      if (stride > kWarpSize || next > kWarpSize) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
}

// An element and the inclusive running mass; `rank` is 0 if there is none.
struct CutPoint {
  unsigned long long rank;
  Mass through;
};

// Sorted candidates with their running masses, four per thread of 512.
struct RunningSums {
  static constexpr int kPerThread = kMaxCandidates / kSortingThreads;

  uint64_t ranks[kPerThread];
  uint64_t weights[kPerThread];
  Mass before;  // of this thread's first candidate
  uint64_t total;

  // `above` is the mass of elements before all candidates.
  __device__ __forceinline__ RunningSums(const Candidates& sorted, int count, const SoftmaxWeights& softmax,
                                         Mass above) {
    const int first = static_cast<int>(threadIdx.x) * kPerThread;
    uint64_t thread_weight = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      ranks[i] = first + i < count ? sorted[first + i] : 0;
      weights[i] = first + i < count ? softmax.weight(value_of(ranks[i])) : 0;
      thread_weight += weights[i];
    }
    const PrefixSum sums = block_prefix_sum(thread_weight);
    before = {above.count + static_cast<uint64_t>(first), above.weight + sums.before};
    total = sums.total;
  }

  // Finds the first element at which the running mass reaches a target; every thread gets it.
  template <class Measure>
  __device__ __forceinline__ CutPoint find_cut(uint64_t target) const {
    __shared__ CutPoint found;
    if (threadIdx.x == 0) {
      found = {0, {0, 0}};
    }
    __syncthreads();
    Mass sum = before;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const Mass through = sum + Mass{1, weights[i]};
      if (ranks[i] != 0 && Measure::of(sum) < target && Measure::of(through) >= target) {
        found = {ranks[i], through};
      }
      sum = through;
    }
    __syncthreads();
    const CutPoint result = found;
    __syncthreads();  // `found` may be overwritten
    return result;
  }

  // The mass of candidates whose ordered bits are at least `threshold`.
  __device__ __forceinline__ uint64_t weight_from(uint32_t threshold) const {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      sum += static_cast<uint32_t>(ranks[i] >> 32) >= threshold ? weights[i] : 0;
    }
    return block_sum(sum);
  }
};

}  // namespace aether
