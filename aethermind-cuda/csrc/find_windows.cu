// The first step of sample_tokens after row_summaries.cu: a block samples a row without limits, or finds windows of
// values that contain the cut of its truncation and its token.

#include "common/dependent_launch.cuh"
#include "common/row_masses.cuh"
#include "common/row_windows.cuh"

extern "C" __global__ void __launch_bounds__(512, AETHER_SAMPLER_BLOCKS)
    find_windows(int* token_ids, aether::Windows* windows, const float* logits, const float* temperatures,
                 const int* top_k, const float* top_p, const float* min_p, const float* uniform, const unsigned* maxima,
                 const unsigned* group_maxima, const unsigned long long* masses, int size, int segment,
                 int num_segments, int num_groups, int capacity) {
  aether::launch_dependents();
  __shared__ aether::Powers powers;
  __shared__ aether::Histogram histogram;
  __shared__ aether::SamplingParams params;
  powers.fill();
  aether::wait_for_predecessor();
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size};
  maxima += index * num_segments;
  const aether::GroupMasses groups{group_maxima + index * num_groups, masses + index * num_groups, num_groups};
  const float temperature = temperatures[index];
  if (threadIdx.x == 0) {
    params = aether::sampling_params_of(temperature, top_k[index], top_p[index], min_p[index], size);
    params.random = uniform[index];
    windows[index].state = aether::RowState::kDone;
  }
  const uint64_t top_segment = aether::top_segment(maxima, num_segments);
  const float largest = aether::value_of(top_segment);
  __syncthreads();
  // A fully masked row, or one with NaN, has no distribution; it gets a deterministic token.
  const bool is_random = temperature > 0.0f && isfinite(largest);
  int token;
  if (!is_random) {
    const int begin = aether::index_of(top_segment) * segment;
    token = aether::index_of(aether::top_rank_in_segment(row.logits, size, begin, segment));
  } else {
    const aether::SoftmaxWeights softmax(powers, aether::SoftmaxScale(temperature), largest, aether::weight_bits(size));
    // top_k of the whole vocabulary keeps everything, but samples in descending order.
    if (top_k[index] > 0 || params.is_any()) {
      if (params.has_min()) {
        aether::find_min_p_bits(params, softmax);
      }
      if (params.needs_row_total()) {
        const uint64_t total = aether::row_total(groups, softmax);
        if (threadIdx.x == 0) {
          params.total = total;
        }
        __syncthreads();
      }
      aether::WindowSearch{histogram, row, maxima, segment, num_segments, softmax, params, capacity, windows[index]}
          .place();
      return;
    }
    token = aether::sample_untruncated(row, groups, powers, softmax, params.random);
  }
  if (threadIdx.x == 0) {
    token_ids[index] = token;
  }
}
