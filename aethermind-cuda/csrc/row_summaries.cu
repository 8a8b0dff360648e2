// Statistics of rows for sample_tokens, computed by many blocks per row of float32 logits [rows, size] in one read: the
// maxima of segments, and the masses of groups of rows that need their total.

#include "common/dependent_launch.cuh"
#include "common/sample_row.cuh"

// maxima[rows, num_segments] and group_maxima[rows, num_groups] as ordered bits, masses[rows, num_groups]. A warp
// computes four segments at a time. Rows that need no total have no group maxima and masses.
extern "C" __global__ void __launch_bounds__(256)
    row_summaries(unsigned* maxima, unsigned* group_maxima, unsigned long long* masses, const float* logits,
                  const float* temperatures, const int* top_k, const float* top_p, const float* min_p, int size,
                  int segment, int num_segments, int num_groups) {
  aether::begin_kernel();
  __shared__ aether::Powers powers;
  const int64_t index = blockIdx.x;
  const float* row = logits + index * size;
  const bool is_aligned = aether::is_vectorizable(row, 0);
  const float temperature = temperatures[index];
  const bool needs_masses =
      temperature > 0.0f && aether::truncation_of(top_k[index], top_p[index], min_p[index], size).needs_row_total();
  if (needs_masses) {
    aether::fill_powers(powers);
  }
  const aether::SoftmaxScale scale(temperature);
  const int groups_per_warp = segment / aether::kSegmentUnit;
  const int num_warps = static_cast<int>(blockDim.x) / aether::kWarpSize;
  for (int warp = static_cast<int>(blockIdx.y) * num_warps + aether::warp_index(); warp * aether::kUnits < num_segments;
       warp += static_cast<int>(gridDim.y) * num_warps) {
    uint32_t lane_maximum = 0;  // lanes 0 to 3: of a segment
    for (int i = 0; i < groups_per_warp; ++i) {
      const int group = warp * groups_per_warp + i;
      if (group >= num_groups) {
        break;
      }
      const aether::GroupLogits values(row, group * aether::kGroup, size, is_aligned);
      uint32_t largest = 0;
#pragma unroll
      for (int unit = 0; unit < aether::kUnits; ++unit) {
        const uint32_t of_unit = values.largest(unit);
        largest = max(largest, of_unit);
        if ((i * aether::kUnits + unit) / groups_per_warp == aether::lane_index()) {
          lane_maximum = max(lane_maximum, of_unit);
        }
      }
      if (needs_masses) {
        const float reference = aether::from_ordered_bits(largest);
        uint64_t mass = 0;
        if (isfinite(reference)) {
          mass = values.mass(aether::SoftmaxWeights(powers, scale, reference, temperature, aether::kGroupBits));
        }
        if (aether::lane_index() == 0) {
          group_maxima[index * num_groups + group] = largest;
          masses[index * num_groups + group] = mass;
        }
      }
    }
    const int number = warp * aether::kUnits + aether::lane_index();
    if (aether::lane_index() < aether::kUnits && number < num_segments) {
      maxima[index * num_segments + number] = lane_maximum;
    }
  }
}
