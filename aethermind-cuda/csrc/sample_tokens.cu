// sample_tokens: samples one token per row of float32 logits [rows, size] by temperature, top_k, top_p, min_p and a
// uniform random number. A block processes a row, after row_summaries.cu has computed the maxima of its segments and
// the masses of its groups.

#include "common/dependent_launch.cuh"
#include "common/sample_row.cuh"

// Two blocks per multiprocessor, where register use allows it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define AETHER_SAMPLER_BLOCKS 1
#else
#define AETHER_SAMPLER_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(512, AETHER_SAMPLER_BLOCKS)
    sample_tokens(int* token_ids, const float* logits, const float* temperatures, const int* top_k, const float* top_p,
                  const float* min_p, const float* uniform, const unsigned* maxima, const unsigned* group_maxima,
                  const unsigned long long* masses, int size, int segment, int num_segments, int num_groups) {
  aether::begin_kernel();
  __shared__ aether::Powers powers;
  __shared__ aether::Histogram histogram;
  __shared__ aether::Candidates candidates;
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size};
  maxima += index * num_segments;
  const aether::GroupMasses groups{group_maxima + index * num_groups, masses + index * num_groups, num_groups};
  const uint64_t top_segment = aether::top_segment(maxima, num_segments);
  const float largest = aether::value_of(top_segment);
  const float temperature = temperatures[index];
  int token =
      aether::index_of(aether::top_rank_in_segment(row.logits, size, aether::index_of(top_segment) * segment, segment));
  // A fully masked row, or one with NaN, has no distribution; it gets a deterministic token.
  if (temperature > 0.0f && isfinite(largest)) {
    aether::fill_powers(powers);
    const aether::SoftmaxWeights softmax(powers, aether::SoftmaxScale(temperature), largest, aether::weight_bits(size));
    __shared__ aether::SamplingParams params;
    if (threadIdx.x == 0) {
      params = aether::sampling_params_of(temperature, top_k[index], top_p[index], min_p[index], size);
      params.random = uniform[index];
    }
    __syncthreads();
    // top_k of the whole vocabulary keeps everything, but samples in descending order.
    if (top_k[index] <= 0 && !params.is_any()) {
      token = aether::sample_untruncated(row, groups, softmax, params.random);
    } else {
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
      token = aether::sample_above_threshold(candidates, row, maxima, segment, num_segments, softmax, params);
      if (token == aether::kNoToken) {
        token = aether::sample_in_bands(histogram, candidates, row, maxima, num_segments, softmax, params);
      }
      if (token == aether::kNoToken) {
        token = aether::sample_by_radix_select(histogram, powers, row.logits, size, largest, params);
      }
    }
  }
  if (threadIdx.x == 0) {
    token_ids[blockIdx.x] = token;
  }
}
