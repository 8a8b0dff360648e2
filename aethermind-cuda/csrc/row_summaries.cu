// Row statistics for sample_tokens, computed by many blocks per row of float32 logits [rows, size]: segment maxima and
// masses.

#include "common/dependent_launch.cuh"
#include "common/sample_row.cuh"

// The maximum of each segment.
extern "C" __global__ void __launch_bounds__(256)
    row_summaries_maxima(unsigned* maxima, const float* logits, int size, int segment, int num_segments) {
  aether::begin_kernel();
  aether::write_segment_maxima(maxima, logits, size, segment, num_segments);
}

// The masses of a row's 32 parts, a block per part, where rows are too few to occupy all multiprocessors.
extern "C" __global__ void __launch_bounds__(256)
    row_summaries_totals(unsigned long long* totals, const float* logits, const float* temperatures, const int* top_k,
                         const float* top_p, const float* min_p, const unsigned* maxima, int size, int num_segments) {
  aether::begin_kernel();
  __shared__ aether::Powers powers;
  const int64_t index = blockIdx.x;
  const float temperature = temperatures[index];
  const aether::Truncation truncation = aether::truncation_of(top_k[index], top_p[index], min_p[index], size);
  if (!(temperature > 0.0f) || !truncation.needs_row_total()) {
    return;
  }
  const float largest = aether::largest_of_maxima(maxima + index * num_segments, num_segments);
  if (!isfinite(largest)) {
    return;
  }
  aether::fill_powers(powers);
  const aether::SoftmaxWeights softmax(powers, largest, temperature, size);
  const int part = static_cast<int>(blockIdx.y);
  const uint64_t sum = aether::block_sum(aether::thread_mass_of_part(
      logits + index * size, 0, size, part, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), softmax));
  if (threadIdx.x == 0) {
    totals[index * aether::kParts + part] = sum;
  }
}
