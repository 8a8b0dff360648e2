// Statistics of a row that many blocks compute in one read: the maxima of its segments, and sums over its groups of 512
// logits. The masses of groups give the row's mass, and the group of the token that an untruncated row samples.
#pragma once

#include "common/radix_top_p.cuh"
#include "common/row_segments.cuh"

namespace aether {

constexpr int kUnits = 4;
constexpr int kGroup = kUnits * kSegmentUnit;
constexpr int kGroupBits = kMaxWeightBits;

// For the groups of a row: the largest logit as ordered bits, and the sum of weights relative to it in units of 2^-53.
struct GroupMasses {
  const uint32_t* maxima;
  const unsigned long long* masses;
  int count;

  // The weights that a group's mass is the sum of.
  __device__ __forceinline__ SoftmaxWeights weights(const Powers& powers, int group,
                                                    const SoftmaxWeights& of_row) const {
    return {powers, of_row.scale, from_ordered_bits(maxima[group]), kGroupBits};
  }

  // Log2 of the number that weighs 2^53 in a group; see `WeightsBy::reference`.
  __device__ __forceinline__ double reference(int group, const SoftmaxWeights& of_row) const {
    return of_row.relative_to(from_ordered_bits(maxima[group])).reference();
  }
};

// The larger number; NaN where one is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#ifdef AETHER_EMULATED
  return a != a || b != b ? __int_as_float(0x7fffffff) : fmaxf(a, b);
#else
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#endif
}

// The 512 logits of a group, 16 to each lane of a warp; the rest of the last group is -infinity.
struct GroupLogits {
  Vector<float> units[kUnits];

  __device__ __forceinline__ GroupLogits(const float* row, int begin, int size, bool is_aligned) {
    if (is_aligned && begin + kGroup <= size) {
      const float* first = row + begin + lane_index() * Vector<float>::size;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        units[unit] = Vector<float>::load(first + unit * kSegmentUnit);
      }
      return;
    }
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      units[unit] = load_unit(row, begin + unit * kSegmentUnit, size, is_aligned);
    }
  }

  // Ordered bits of the largest logit of a unit; every lane gets it.
  __device__ __forceinline__ uint32_t largest(int unit) const {
    const auto& values = units[unit].values;
    const float lane_largest = max_or_nan(max_or_nan(values[0], values[1]), max_or_nan(values[2], values[3]));
    return __reduce_max_sync(kFullWarp, ordered_bits(lane_largest));
  }

  // The sum of weights; every lane gets it.
  __device__ __forceinline__ uint64_t mass(const FastWeights& softmax) const {
    uint64_t sum = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < Vector<float>::size; ++i) {
        sum += softmax.weight(units[unit].values[i]);
      }
    }
    return warp_sum(sum);
  }
};

// Writes the maxima of the segments of a row as ordered bits, and calls body(group, logits, largest) for every group,
// `largest` in ordered bits. A warp takes four segments at a time; the grid's second dimension divides the row.
template <class Body>
__device__ __forceinline__ void summarize_row(uint32_t* maxima, const float* row, int size, int segment,
                                              int num_segments, const Body& body) {
  const bool is_aligned = is_vectorizable(row, 0);
  const int groups_per_warp = segment / kSegmentUnit;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  for (int warp = static_cast<int>(blockIdx.y) * num_warps + warp_index(); warp * kUnits < num_segments;
       warp += static_cast<int>(gridDim.y) * num_warps) {
    uint32_t lane_maximum = 0;  // lanes 0 to 3: of a segment
    for (int i = 0; i < groups_per_warp; ++i) {
      const int group = warp * groups_per_warp + i;
      if (group * kGroup >= size) {
        break;
      }
      const GroupLogits logits(row, group * kGroup, size, is_aligned);
      uint32_t largest = 0;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        const uint32_t of_unit = logits.largest(unit);
        largest = max(largest, of_unit);
        // Without a division where a segment is a unit.
        if ((groups_per_warp == 1 ? unit : (i * kUnits + unit) / groups_per_warp) == lane_index()) {
          lane_maximum = max(lane_maximum, of_unit);
        }
      }
      body(group, logits, largest);
    }
    const int number = warp * kUnits + lane_index();
    if (lane_index() < kUnits && number < num_segments) {
      maxima[number] = lane_maximum;
    }
  }
}

// A group's mass in units of the row's weights.
__device__ __forceinline__ uint64_t row_mass(const GroupMasses& groups, int group, const SoftmaxWeights& softmax) {
  const uint64_t mass = groups.masses[group];
  if (mass == 0) {
    return 0;
  }
  const double distance = groups.reference(group, softmax) - softmax.reference();
  const double ratio = exp2(distance + (softmax.bits - kGroupBits));
  return static_cast<uint64_t>(static_cast<double>(mass) * ratio + 0.5);
}

// The first and the last + 1 of this thread's consecutive groups.
struct ThreadGroups {
  int first, end;

  __device__ __forceinline__ explicit ThreadGroups(int count) {
    const int per_thread = (count + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x);
    first = min(count, static_cast<int>(threadIdx.x) * per_thread);
    end = min(count, first + per_thread);
  }
};

// The mass of a row; every thread of a block gets it.
__device__ __forceinline__ uint64_t row_total(const GroupMasses& groups, const SoftmaxWeights& softmax) {
  const ThreadGroups own(groups.count);
  uint64_t sum = 0;
  for (int group = own.first; group < own.end; ++group) {
    sum += row_mass(groups, group, softmax);
  }
  return block_sum(sum);
}

// Inverse transform sampling of an untruncated row: the first index at which the running mass by ascending index
// exceeds `random` times the total. The groups' masses give its group. For blocks of a thread per logit of a group.
__device__ __forceinline__ int sample_untruncated(const Row& row, const GroupMasses& groups, const Powers& powers,
                                                  const SoftmaxWeights& softmax, double random) {
  __shared__ int chosen_group, chosen;
  __shared__ unsigned long long chosen_target;
  const ThreadGroups own(groups.count);
  uint64_t sum = 0;
  for (int group = own.first; group < own.end; ++group) {
    sum += row_mass(groups, group, softmax);
  }
  const PrefixSum of_groups = block_prefix_sum(sum);
  const uint64_t target = target_beyond(random, of_groups.total);
  uint64_t before = of_groups.before;
  if (before < target && target <= before + sum) {
    for (int group = own.first; group < own.end; ++group) {
      const uint64_t mass = row_mass(groups, group, softmax);
      if (before < target && target <= before + mass) {
        // The same part of the group's mass in its own units.
        const double part = static_cast<double>(target - before) / static_cast<double>(mass);
        chosen_group = group;
        chosen_target = target_reaching(part, groups.masses[group]);
      }
      before += mass;
    }
  }
  __syncthreads();
  const int begin = chosen_group * kGroup, index = begin + static_cast<int>(threadIdx.x);
  const SoftmaxWeights in_group = groups.weights(powers, chosen_group, softmax);
  const bool is_inside = static_cast<int>(threadIdx.x) < kGroup && index < row.size;
  const uint64_t weight = is_inside ? in_group.weight(row.logits[index]) : 0;
  const PrefixSum in = block_prefix_sum(weight);
  if (in.before < chosen_target && chosen_target <= in.before + weight) {
    chosen = index;
  }
  __syncthreads();
  return chosen;
}

}  // namespace aether
