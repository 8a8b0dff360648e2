// sample_tokens: samples one token per row by temperature, top_k, top_p, min_p and a random number. A block processes a
// row, after row_summaries.cu has computed its segment maxima.

#include "common/overlap.cuh"
#include "common/row_cuts.cuh"

// Two blocks per multiprocessor, where register use allows it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define AETHER_SAMPLER_BLOCKS 1
#else
#define AETHER_SAMPLER_BLOCKS 2
#endif

extern "C" __global__ void __launch_bounds__(512, AETHER_SAMPLER_BLOCKS)
    sample_tokens(int* token_ids, const float* logits, const float* temperatures, const int* top_k, const float* top_p,
                  const float* min_p, const float* uniform, const unsigned* maxima, const unsigned long long* totals,
                  int size, int segment, int num_segments) {
  aether::begin_kernel();
  __shared__ aether::Powers powers;
  __shared__ aether::Histogram histogram;
  __shared__ aether::Candidates candidates;
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size};
  maxima += index * num_segments;
  totals = totals == nullptr ? nullptr : totals + index * aether::kParts;
  const uint64_t first = aether::first_by_maxima(row.logits, size, maxima, segment, num_segments);
  const float temperature = temperatures[index];
  int token = aether::index_of(first);
  // A fully masked row, or one with NaN, has no distribution; it gets a deterministic token.
  if (temperature > 0.0f && isfinite(aether::value_of(first))) {
    aether::fill_powers(powers);
    const aether::Weighing weighing(powers, aether::value_of(first), temperature, size);
    aether::Cuts cuts = aether::cuts_of(top_k[index], top_p[index], min_p[index], size);
    const double share = uniform[index];
    // top_k of the whole vocabulary keeps everything, but samples in descending order.
    if (top_k[index] <= 0 && !cuts.is_any()) {
      token = aether::sample_uncut(row, totals, weighing, share);
    } else {
      cuts.least = cuts.has_min() ? aether::least_value(weighing, cuts.min_p) : 0;
      token = aether::sample_above_threshold(candidates, row, maxima, num_segments, totals, weighing, cuts, share);
      if (token == aether::kNoToken) {
        token = aether::sample_by_bins(histogram, candidates, row, weighing, cuts, share);
      }
      if (token == aether::kNoToken) {
        token = aether::sample_by_descents(histogram, row, weighing, cuts, share);
      }
    }
  }
  if (threadIdx.x == 0) {
    token_ids[index] = token;
  }
}
