// The last step of sample_tokens, which samples one token per row of float32 logits [rows, size] by temperature, top_k,
// top_p, min_p and a uniform random number: a block chooses among the elements that gather_windows.cu gathered.

#include "common/dependent_launch.cuh"
#include "common/sample_row.cuh"

extern "C" __global__ void __launch_bounds__(512, AETHER_SAMPLER_BLOCKS)
    sample_tokens(int* token_ids, const aether::Windows* windows_of_rows, const unsigned long long* ranks,
                  const float* logits, const float* temperatures, const int* top_k, const float* top_p,
                  const float* min_p, const float* uniform, int size, int capacity) {
  aether::launch_dependents();
  __shared__ aether::Powers powers;
  __shared__ aether::Histogram histogram;
  __shared__ aether::Candidates candidates;
  __shared__ aether::Windows windows;
  __shared__ aether::SamplingParams params;
  powers.fill();
  aether::wait_for_predecessor();
  const int64_t index = blockIdx.x;
  if (threadIdx.x == 0) {
    windows = windows_of_rows[index];
    params = aether::sampling_params_of(temperatures[index], top_k[index], top_p[index], min_p[index], size);
    params.random = uniform[index];
    params.total = windows.total;
    params.min_p_bits = windows.min_p_bits;
  }
  __syncthreads();
  if (windows.state == aether::RowState::kDone) {
    return;
  }
  ranks += index * capacity;
  const float largest = windows.largest;
  const aether::SoftmaxWeights softmax(powers, aether::SoftmaxScale(params.temperature), largest,
                                       aether::weight_bits(size));
  const uint32_t count = windows.num_gathered;
  int token = aether::kNoToken;
  if (windows.state == aether::RowState::kTop && count <= aether::kMaxSorted) {
    const aether::SortedElements elements(candidates, ranks, static_cast<int>(count), softmax);
    token = aether::sample_elements(elements, windows, static_cast<int>(count), params);
  } else if (windows.state != aether::RowState::kUnknown && count <= static_cast<uint32_t>(capacity)) {
    const aether::BinnedElements elements(histogram, candidates, ranks, static_cast<int>(count), softmax, windows,
                                          params.has_k());
    token = aether::sample_elements(elements, windows, static_cast<int>(count), params);
  }
  if (token == aether::kNoToken) {
    token = aether::sample_by_radix_select(histogram, powers, logits + index * size, size, largest, params);
  }
  if (threadIdx.x == 0) {
    token_ids[index] = token;
  }
}
