// Logits processors, [rows, size]: repetition_penalty, bias_tokens and suppress_tokens at listed tokens, mask_tokens at
// tokens whose bit is 0. A block processes a contiguous range of one row and the listed tokens within it; out may alias
// logits. Rows are blockIdx.x, the only grid dimension beyond 65,535.

#include "common/overlap.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kRangeLogits = 8192;

template <class Change>
__device__ __forceinline__ void change_listed(float* out, const float* logits, const int* tokens, const int* cuts,
                                              int size, const Change& change) {
  const int row = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(blockIdx.y) * kRangeLogits;
  const int end = min(begin + kRangeLogits, size);
  out += static_cast<int64_t>(row) * size;
  logits += static_cast<int64_t>(row) * size;
  if (out != logits) {
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
      out[i] = logits[i];
    }
    __syncthreads();
  }
  for (int i = cuts[row] + static_cast<int>(threadIdx.x); i < cuts[row + 1]; i += static_cast<int>(blockDim.x)) {
    const int token = tokens[i];
    if (token >= begin && token < end) {
      out[token] = change(out[token], row, i);
    }
  }
}

}  // namespace aether

extern "C" __global__ void adjust_logits_repetition_penalty(float* out, const float* logits, const int* tokens,
                                                            const int* cuts, const float* penalty, int size) {
  aether::begin_kernel();
  aether::change_listed(out, logits, tokens, cuts, size, [&](float logit, int row, int) {
    return logit > 0.0f ? logit / penalty[row] : logit * penalty[row];
  });
}

extern "C" __global__ void adjust_logits_bias_tokens(float* out, const float* logits, const int* tokens,
                                                     const int* cuts, const float* bias, int size) {
  aether::begin_kernel();
  aether::change_listed(out, logits, tokens, cuts, size, [&](float logit, int, int i) { return logit + bias[i]; });
}

extern "C" __global__ void adjust_logits_suppress_tokens(float* out, const float* logits, const int* tokens,
                                                         const int* cuts, int size) {
  aether::begin_kernel();
  aether::change_listed(out, logits, tokens, cuts, size, [&](float, int, int) { return aether::Max::kNeutral; });
}

extern "C" __global__ void adjust_logits_mask_tokens(float* out, const float* logits, const int* mask, int size,
                                                     int num_words) {
  aether::begin_kernel();
  const int64_t row = blockIdx.x;
  const int begin = static_cast<int>(blockIdx.y) * aether::kRangeLogits;
  const int end = min(begin + aether::kRangeLogits, size);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    const bool is_allowed = mask[row * num_words + i / 32] >> (i % 32) & 1;
    out[row * size + i] = is_allowed ? logits[row * size + i] : aether::Max::kNeutral;
  }
}
