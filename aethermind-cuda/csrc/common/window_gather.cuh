// The gathering of a row's windows by many blocks.
#pragma once

#include "common/row_masses.cuh"
#include "common/row_windows.cuh"

namespace aether {

constexpr int kGatherWarps = 8;  // of a block that gathers

// Compacts the ranks of the elements in a row's windows into `ranks`, in any order, and sums the weights of those
// before the windows of a deep row. The grid's second dimension divides the row. `windows` are in global memory.
struct WindowGather {
  static constexpr int kWide = Vector<float>::size;
  static constexpr int kLogits = kUnits * kWide;  // of a lane at a time

  Windows& windows;
  unsigned long long* ranks;
  unsigned capacity;
  const Row& row;
  const uint32_t* maxima;
  int segment, num_segments;
  float upper_first, upper_end, lower_first, lower_end;
  uint32_t threshold;  // ordered bits of the smallest value in a window
  int warp, num_warps;

  __device__ __forceinline__ WindowGather(Windows& windows, unsigned long long* ranks, int capacity, const Row& row,
                                          const uint32_t* maxima, int segment, int num_segments)
      : windows(windows),
        ranks(ranks),
        capacity(static_cast<unsigned>(capacity)),
        row(row),
        maxima(maxima),
        segment(segment),
        num_segments(num_segments),
        upper_first(windows.upper_first),
        upper_end(windows.upper_end),
        lower_first(windows.lower_first),
        lower_end(windows.lower_end),
        threshold(ordered_bits(lower_first)) {
    warp = static_cast<int>(blockIdx.y * blockDim.x) / kWarpSize + warp_index();
    num_warps = static_cast<int>(gridDim.y * blockDim.x) / kWarpSize;
  }

  // A number whose sign bit is set if a value is below a bound, which is not +0.
  __device__ __forceinline__ static uint32_t below(float value, float bound) {
    return __float_as_uint(__fsub_rn(value, bound));
  }

  // Shared memory for the places of a warp's elements.
  __device__ __forceinline__ static uint16_t* places_of_warp() {
    __shared__ uint16_t places[kGatherWarps][kLogits * kWarpSize];
    return places[warp_index()];
  }

  // Writes the elements of a bit mask: this lane's 16, the first in bit 0; index_at(lane, number) are their indices.
  // Lanes first write their places to shared memory, so that all lanes share the work.
  template <class IndexAt>
  __device__ __forceinline__ void append(unsigned chosen, const IndexAt& index_at) const {
    uint16_t* places = places_of_warp();
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
    uint16_t* next = places + through - own;
    for (; chosen != 0; chosen &= chosen - 1) {
      *next++ = static_cast<uint16_t>((__ffs(static_cast<int>(chosen)) - 1) * kWarpSize + lane_index());
    }
    __syncwarp();
    const auto rank_at = [&](unsigned i) {
      const unsigned place = places[i];
      const int index = index_at(place % kWarpSize, place / kWarpSize);
      return rank_of(row.logits[index], index);
    };
    // The first is read while the slot is awaited.
    unsigned i = static_cast<unsigned>(lane_index());
    uint64_t rank = i < total ? rank_at(i) : 0;
    slot = __shfl_sync(kFullWarp, slot, 0);
    const unsigned end = slot < capacity ? min(total, capacity - slot) : 0;
    unsigned long long* written = ranks + slot;
    while (i < end) {
      written[i] = rank;
      i += kWarpSize;
      rank = i < end ? rank_at(i) : 0;
    }
    __syncwarp();
  }

  // Gathers the elements from `upper_first`, from the segments whose maximum is large enough. A warp reads a unit of
  // four at a time.
  __device__ __forceinline__ void read_top() const {
    const bool is_aligned = is_vectorizable(row.logits, 0);
    // Segments take turns among warps, as those with large maxima may be side by side.
    for (int first = warp; first < num_segments; first += num_warps * kWarpSize) {
      const int own = first + lane_index() * num_warps;
      unsigned left = __ballot_sync(kFullWarp, own < num_segments && maxima[own] >= threshold);
      while (left != 0) {
        int begins[kUnits];
        bool is_whole = is_aligned;
#pragma unroll
        for (int ahead = 0; ahead < kUnits; ++ahead) {
          begins[ahead] = left != 0 ? (first + (__ffs(static_cast<int>(left)) - 1) * num_warps) * segment : row.size;
          left &= left - 1;
          is_whole = is_whole && begins[ahead] + segment <= row.size;
        }
        for (int unit = 0; unit < segment; unit += kSegmentUnit) {
          Vector<float> loaded[kUnits];
          if (is_whole) {
#pragma unroll
            for (int ahead = 0; ahead < kUnits; ++ahead) {
              loaded[ahead] = Vector<float>::load(row.logits + begins[ahead] + unit + lane_index() * kWide);
            }
          } else {
#pragma unroll
            for (int ahead = 0; ahead < kUnits; ++ahead) {
              loaded[ahead] = load_unit(row.logits, begins[ahead] + unit, row.size, is_aligned);
            }
          }
          unsigned chosen = 0;
#pragma unroll
          for (int i = kLogits - 1; i >= 0; --i) {
            chosen = __funnelshift_l(~below(loaded[i / kWide].values[i % kWide], upper_first), chosen, 1);
          }
          append(chosen, [&](unsigned lane, unsigned number) {
            const int begin = number < 8 ? (number < 4 ? begins[0] : begins[1]) : (number < 12 ? begins[2] : begins[3]);
            return begin + unit + static_cast<int>(lane * kWide + number % kWide);
          });
        }
      }
    }
  }

  // Whether an element of a group of 512 logits may be in a window, or before one.
  __device__ __forceinline__ bool is_needed(int group) const {
    bool result = false;
    for (int i = group * kGroup / segment; i < num_segments && i * segment < (group + 1) * kGroup; ++i) {
      result = result || maxima[i] >= threshold;
    }
    return result;
  }

  // Gathers the elements of both windows and sums the weights before each. A warp reads a group at a time.
  __device__ __forceinline__ void read_deep(const FastWeights& softmax) const {
    const bool is_aligned = is_vectorizable(row.logits, 0);
    const int num_groups = (row.size + kGroup - 1) / kGroup;
    // Smaller logits weigh nothing.
    const float summed_end = fmaxf(lower_end, softmax.smallest());
    uint64_t before_upper = 0, before_lower = 0;
    for (int first = warp; first < num_groups; first += num_warps * kWarpSize) {
      const int own = first + lane_index() * num_warps;
      unsigned left = __ballot_sync(kFullWarp, own < num_groups && is_needed(own));
      const auto next_begin = [&] { return (first + (__ffs(static_cast<int>(left)) - 1) * num_warps) * kGroup; };
      if (left == 0) {
        continue;
      }
      int begin = next_begin();
      GroupLogits logits(row.logits, begin, row.size, is_aligned);
      while (left != 0) {
        unsigned chosen = 0;
#pragma unroll
        for (int i = kLogits - 1; i >= 0; --i) {
          const float value = logits.units[i / kWide].values[i % kWide];
          // Bounds descend, so a value in a window is below an odd number of them.
          const uint32_t is_chosen =
              below(value, upper_end) ^ below(value, upper_first) ^ below(value, lower_end) ^ below(value, lower_first);
          chosen = __funnelshift_l(is_chosen, chosen, 1);
          const uint64_t weight =
              softmax.weight_at(value >= summed_end ? __fsub_rn(value, softmax.offset) : softmax.lowest);
          before_lower += weight;
          before_upper += value >= upper_end ? weight : 0;
        }
        const int written_begin = begin;
        left &= left - 1;
        if (left != 0) {
          // The next group is on its way while these elements are written.
          begin = next_begin();
          logits = GroupLogits(row.logits, begin, row.size, is_aligned);
        }
        append(chosen, [&](unsigned lane, unsigned number) {
          return written_begin + static_cast<int>(number / kWide * kSegmentUnit + lane * kWide + number % kWide);
        });
      }
    }
    before_upper = block_sum(before_upper);
    before_lower = block_sum(before_lower);
    if (threadIdx.x == 0) {
      atomicAdd(&windows.before_upper, static_cast<unsigned long long>(before_upper));
      atomicAdd(&windows.before_lower, static_cast<unsigned long long>(before_lower));
    }
  }
};

}  // namespace aether
