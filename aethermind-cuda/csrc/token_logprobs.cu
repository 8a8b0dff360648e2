// token_logprobs: the log softmax of a token of float32 logits [rows, size], its rank, and the k most likely tokens
// with theirs. Many blocks a row find the maxima of segments and sums over groups; then a block processes a row.

#include "common/dependent_launch.cuh"
#include "common/row_candidates.cuh"
#include "common/row_masses.cuh"

namespace aether {

// The sum of exp(logit - largest) over a group without one element that is the largest; every lane gets it.
__device__ __forceinline__ float sum_of_others(const GroupLogits& logits, float largest) {
  float sum = 0.0f;
  bool has_largest = false;
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
    for (int i = 0; i < Vector<float>::size; ++i) {
      const float value = logits.units[unit].values[i];
      const bool is_first = !has_largest && value == largest;
      sum += is_first ? 0.0f : expf(value - largest);
      has_largest = has_largest || is_first;
    }
  }
  // Every lane that has a largest element left one out. All lanes but the first add it again: exp(0) = 1.
  const unsigned having = __ballot_sync(kFullWarp, has_largest);
  return warp_reduce<Sum>(has_largest && lane_index() != __ffs(static_cast<int>(having)) - 1 ? sum + 1.0f : sum);
}

// Writes the ranks of the k most likely tokens to the first candidates. Returns the number of gathered candidates; if
// it exceeds their capacity, the candidates are not valid.
__device__ __forceinline__ int most_likely(Candidates& candidates, const Row& row, const uint32_t* maxima, int segment,
                                           int num_segments, int k) {
  uint32_t threshold = 0;
  if (row.size > kMaxCandidates) {
    if (k > num_segments) {
      return kMaxCandidates + 1;
    }
    // k segments have elements of at least the k-th largest maximum.
    for (int i = static_cast<int>(threadIdx.x); i < num_segments; i += static_cast<int>(blockDim.x)) {
      candidates[i] = static_cast<unsigned long long>(maxima[i]) << 32;
    }
    sort_descending(candidates, num_segments);
    threshold = static_cast<uint32_t>(candidates[k - 1] >> 32);
    __syncthreads();
  }
  const int count = gather_from_segments(candidates, row, maxima, segment, num_segments, threshold);
  if (count <= kMaxCandidates) {
    sort_descending(candidates, count);
  }
  return count;
}

}  // namespace aether

// maxima[rows, num_segments] and group_maxima[rows, num_groups] as ordered bits; for every group the sum of
// exp(logit - largest) without the largest itself, and the number of logits that are larger than that of the row's
// token.
extern "C" __global__ void __launch_bounds__(256)
    token_logprobs_summaries(unsigned* maxima, unsigned* group_maxima, float* sums_of_others, int* nums_larger,
                             const float* logits, const int* token_ids, int size, int segment, int num_segments,
                             int num_groups) {
  aether::begin_kernel();
  const int64_t index = blockIdx.x;
  const float* row = logits + index * size;
  const float chosen = row[token_ids[index]];
  const auto write_sums = [&](int group, const aether::GroupLogits& values, uint32_t largest) {
    const float reference = aether::from_ordered_bits(largest);
    const float sum = reference == aether::Max::kNeutral ? 0.0f : aether::sum_of_others(values, reference);
    unsigned num_larger = 0;
#pragma unroll
    for (int unit = 0; unit < aether::kUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < aether::Vector<float>::size; ++i) {
        num_larger += values.units[unit].values[i] > chosen;
      }
    }
    num_larger = __reduce_add_sync(aether::kFullWarp, num_larger);
    if (aether::lane_index() == 0) {
      group_maxima[index * num_groups + group] = largest;
      sums_of_others[index * num_groups + group] = sum;
      nums_larger[index * num_groups + group] = static_cast<int>(num_larger);
    }
  };
  aether::summarize_row(maxima + index * num_segments, row, size, segment, num_segments, write_sums);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    token_logprobs(float* logprob, int* rank, int* top_ids, float* top_logprobs, const float* logits,
                   const int* token_ids, const unsigned* maxima, const unsigned* group_maxima,
                   const float* sums_of_others, const int* nums_larger, int size, int segment, int num_segments,
                   int num_groups, int k) {
  aether::begin_kernel();
  __shared__ aether::Candidates candidates;
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size};
  maxima += index * num_segments;
  group_maxima += index * num_groups;
  const uint64_t top = aether::top_segment(group_maxima, num_groups);
  const float largest = aether::value_of(top);
  float sum_of_others = 0.0f;
  uint64_t num_larger = 0;
  for (int group = static_cast<int>(threadIdx.x); group < num_groups; group += static_cast<int>(blockDim.x)) {
    const float others = sums_of_others[index * num_groups + group];
    const float power = expf(aether::from_ordered_bits(group_maxima[group]) - largest);
    sum_of_others += group == aether::index_of(top) ? others : (1.0f + others) * power;
    num_larger += static_cast<uint64_t>(nums_larger[index * num_groups + group]);
  }
  // The large terms are left out first: a logprob near zero is the difference of nearly equal numbers.
  const float log_sum = log1pf(aether::block_reduce<aether::Sum>(sum_of_others));
  num_larger = aether::block_sum(num_larger);
  if (threadIdx.x == 0) {
    logprob[index] = row.logits[token_ids[index]] - largest - log_sum;
    rank[index] = 1 + static_cast<int>(num_larger);
  }
  if (k == 0) {
    return;
  }
  const int num_found = min(k, size);
  const bool is_sorted =
      aether::most_likely(candidates, row, maxima, segment, num_segments, num_found) <= aether::kMaxCandidates;
  uint64_t below = ~uint64_t{0};
  for (int i = 0; i < k; ++i) {
    uint64_t next = 0;
    if (i < num_found && is_sorted) {
      next = candidates[i];
    } else if (i < num_found) {
      aether::for_each_logit<aether::kPrefetchVectors>(row.logits, size, [&](float value, int element) {
        const uint64_t other = aether::rank_of(value, element);
        next = other < below && other > next ? other : next;
      });
      below = next = aether::block_largest(next);
    }
    if (threadIdx.x == 0) {
      top_ids[index * k + i] = i < num_found ? aether::index_of(next) : -1;
      top_logprobs[index * k + i] = i < num_found ? aether::value_of(next) - largest - log_sum : aether::Max::kNeutral;
    }
  }
}
