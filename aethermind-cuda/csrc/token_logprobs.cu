// token_logprobs: the log softmax of a token and its rank, and the k most likely tokens. A block takes a row.

#include "common/overlap.cuh"
#include "common/row_candidates.cuh"

extern "C" __global__ void __launch_bounds__(1024, 1)
    token_logprobs(float* logprob, int* rank, int* top_ids, float* top_logprobs, const float* logits,
                   const int* token_ids, int size, int k) {
  aether::begin_kernel();
  __shared__ aether::Histogram histogram;
  __shared__ unsigned long long candidates[aether::kMostCandidates];
  const int64_t index = blockIdx.x;
  const aether::Row row{logits + index * size, size, nullptr, 0};
  uint64_t first = aether::row_first(row.logits, size);
  const float largest = aether::value_of(first);
  const float chosen = row.logits[token_ids[index]];
  float sum = 0.0f;
  uint64_t num_larger = 0;
  row.for_each([&](uint64_t element) {
    const float value = aether::value_of(element);
    sum += expf(value - largest);
    num_larger += value > chosen;
  });
  // What is large in a difference goes first: a logprob near zero is one of two that are almost the same.
  const float log_sum = logf(aether::block_reduce<aether::Sum>(sum));
  num_larger = aether::block_sum(num_larger);
  if (threadIdx.x == 0) {
    logprob[index] = chosen - largest - log_sum;
    rank[index] = 1 + static_cast<int>(num_larger);
  }
  if (k == 0) {
    return;
  }
  const int num_found = k < size ? k : size;
  aether::CoarseHistogram coarse(histogram, largest, 1.0f);
  coarse.fill(row, aether::Weighing(largest, 1.0f, size));
  const int last_bin = coarse.reach<aether::ByCount>(num_found);
  const aether::Row near = aether::gathered(row, coarse, last_bin, candidates);
  uint64_t below = ~uint64_t{0};
  for (int i = 0; i < k; ++i) {
    uint64_t next = 0;
    if (i < num_found) {
      near.for_each([&](uint64_t element) { next = element < below && element > next ? element : next; });
      next = aether::block_largest(next);
      below = next;
    }
    if (threadIdx.x == 0) {
      top_ids[index * k + i] = i < num_found ? aether::index_of(next) : -1;
      top_logprobs[index * k + i] = i < num_found ? aether::value_of(next) - largest - log_sum : aether::Max::kNeutral;
    }
  }
}
