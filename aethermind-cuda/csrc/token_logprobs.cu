// token_logprobs: the log softmax of a token of float32 logits [rows, size], its rank, and the k most likely tokens
// with theirs. A block processes a row.

#include "common/dependent_launch.cuh"
#include "common/row_candidates.cuh"

extern "C" __global__ void __launch_bounds__(512, 2)
    token_logprobs(float* logprob, int* rank, int* top_ids, float* top_logprobs, const float* logits,
                   const int* token_ids, int size, int k) {
  aether::begin_kernel();
  __shared__ aether::Histogram histogram;
  __shared__ aether::Candidates candidates;
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size};
  uint64_t top = 0;
  aether::for_each_logit<aether::kVectorsAhead>(row.logits, size, [&](float value, int i) {
    const uint64_t element = aether::rank_of(value, i);
    top = element > top ? element : top;
  });
  top = aether::block_largest(top);
  const float largest = aether::value_of(top);
  const int most_likely = aether::index_of(top);
  const float chosen = row.logits[token_ids[index]];
  float sum_of_others = 0.0f;
  uint64_t num_larger = 0;
  aether::CoarseHistogram coarse(histogram, largest, 1.0f);
  const auto accumulate = [&](float value, int i) {
    sum_of_others += expf(value - largest) - (i == most_likely ? 1.0f : 0.0f);
    num_larger += value > chosen;
    return uint64_t{0};
  };
  if (k > 0) {
    coarse.fill(row, accumulate);
  } else {
    aether::for_each_logit<aether::kVectorsAhead>(row.logits, size, accumulate);
  }
  // The large terms are subtracted first: a logprob near zero is the difference of nearly equal numbers.
  const float log_sum = log1pf(aether::block_reduce<aether::Sum>(sum_of_others));
  num_larger = aether::block_sum(num_larger);
  if (threadIdx.x == 0) {
    logprob[index] = chosen - largest - log_sum;
    rank[index] = 1 + static_cast<int>(num_larger);
  }
  if (k == 0) {
    return;
  }
  const int num_found = k < size ? k : size;
  const aether::FoundBin last = coarse.find<aether::ByCount>(num_found);
  int count = aether::kMaxCandidates + 1;
  if (last.bin >= 0) {
    count = static_cast<int>(last.before.count + histogram.mass(last.bin).count);
  }
  const bool is_sorted = count <= aether::kMaxCandidates;
  if (is_sorted) {
    aether::gather(candidates, row, [&](float value) { return coarse.bin(value) <= last.bin; });
    aether::sort_descending(candidates, count);
  }
  uint64_t below = ~uint64_t{0};
  for (int i = 0; i < k; ++i) {
    uint64_t next = 0;
    if (i < num_found && is_sorted) {
      next = candidates[i];
    } else if (i < num_found) {
      aether::for_each_logit<aether::kVectorsAhead>(row.logits, size, [&](float value, int element) {
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
