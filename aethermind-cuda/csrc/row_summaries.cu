// Statistics of rows for sample_tokens, computed by many blocks per row of float32 logits [rows, size] in one read: the
// maxima of segments, and the masses of groups of rows that need their total.

#include "common/dependent_launch.cuh"
#include "common/row_masses.cuh"
#include "common/sampling_params.cuh"

// Blocks per multiprocessor: as many as its shared memory holds of their tables.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define AETHER_SUMMARY_BLOCKS 6
#else
#define AETHER_SUMMARY_BLOCKS 4
#endif

// maxima[rows, num_segments] and group_maxima[rows, num_groups] as ordered bits, masses[rows, num_groups]. Rows that
// need no total have no group maxima and masses.
extern "C" __global__ void __launch_bounds__(256, AETHER_SUMMARY_BLOCKS)
    row_summaries(unsigned* maxima, unsigned* group_maxima, unsigned long long* masses, const float* logits,
                  const float* temperatures, const int* top_k, const float* top_p, const float* min_p, int size,
                  int segment, int num_segments, int num_groups) {
  aether::begin_kernel();
  __shared__ aether::FastPowers powers;
  const int64_t index = blockIdx.x;
  const float temperature = temperatures[index];
  const bool needs_masses =
      temperature > 0.0f &&
      aether::sampling_params_of(temperature, top_k[index], top_p[index], min_p[index], size).needs_row_total();
  if (needs_masses) {
    powers.fill();
  }
  const aether::FastWeights softmax(powers, aether::SoftmaxScale(temperature), 0.0f, aether::kGroupBits);
  const auto write_mass = [&](int group, const aether::GroupLogits& values, uint32_t largest) {
    if (!needs_masses) {
      return;
    }
    const float reference = aether::from_ordered_bits(largest);
    uint64_t mass = 0;
    if (isfinite(reference)) {
      mass = values.mass(softmax.relative_to(reference));
    }
    if (aether::lane_index() == 0) {
      group_maxima[index * num_groups + group] = largest;
      masses[index * num_groups + group] = mass;
    }
  };
  aether::summarize_row(maxima + index * num_segments, logits + index * size, size, segment, num_segments, write_mass);
}
