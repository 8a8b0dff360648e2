// Logits processors over float32 logits [rows, size]: repetition_penalty, bias_tokens and suppress_tokens at listed
// tokens (CSR: cu_tokens[rows + 1]), mask_tokens at tokens whose bit is 0. A block processes a contiguous range of one
// row and the listed tokens within it; out may alias logits. Rows are on blockIdx.x: other grid dimensions are at most
// 65,535.

#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kLogitsPerBlock = 8192;

template <class Adjust>
__device__ __forceinline__ void adjust_listed_tokens(float* out, const float* logits, const int* tokens,
                                                     const int* cu_tokens, int size, const Adjust& adjust) {
  const int row = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(blockIdx.y) * kLogitsPerBlock;
  const int end = min(begin + kLogitsPerBlock, size);
  out += static_cast<int64_t>(row) * size;
  logits += static_cast<int64_t>(row) * size;
  if (out == logits) {
    // Blocks divide the tokens: there is nothing to copy.
    for (int i = cu_tokens[row] + static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x); i < cu_tokens[row + 1];
         i += static_cast<int>(gridDim.y * blockDim.x)) {
      const int token = tokens[i];
      if (token >= 0 && token < size) {
        out[token] = adjust(out[token], row, i);
      }
    }
    return;
  }
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    out[i] = logits[i];
  }
  __syncthreads();
  for (int i = cu_tokens[row] + static_cast<int>(threadIdx.x); i < cu_tokens[row + 1];
       i += static_cast<int>(blockDim.x)) {
    const int token = tokens[i];
    if (token >= begin && token < end) {
      out[token] = adjust(out[token], row, i);
    }
  }
}

// Masks four logits by the lowest bits of `allowed`. It does not read them if all are masked, and in place it does not
// touch them if none is masked.
__device__ __forceinline__ void mask_vec4(float* out, const float* logits, int allowed) {
  using Vec4 = Vector<float>;
  constexpr int kAll = (1 << Vec4::size) - 1;
  allowed &= kAll;
  if (out == logits && allowed == kAll) {
    return;
  }
  Vec4 vec{};
  if (allowed != 0) {
    vec = Vec4::load(logits);
  }
#pragma unroll
  for (int i = 0; i < Vec4::size; ++i) {
    vec.values[i] = allowed >> i & 1 ? vec.values[i] : Max::kNeutral;  // -inf
  }
  vec.store(out);
}

}  // namespace aether

extern "C" __global__ void adjust_logits_repetition_penalty(float* out, const float* logits, const int* tokens,
                                                            const int* cu_tokens, const float* penalty, int size) {
  aether::begin_kernel();
  aether::adjust_listed_tokens(out, logits, tokens, cu_tokens, size, [&](float logit, int row, int) {
    return logit > 0.0f ? logit / penalty[row] : logit * penalty[row];
  });
}

extern "C" __global__ void adjust_logits_bias_tokens(float* out, const float* logits, const int* tokens,
                                                     const int* cu_tokens, const float* bias, int size) {
  aether::begin_kernel();
  aether::adjust_listed_tokens(out, logits, tokens, cu_tokens, size,
                               [&](float logit, int, int i) { return logit + bias[i]; });
}

extern "C" __global__ void adjust_logits_suppress_tokens(float* out, const float* logits, const int* tokens,
                                                         const int* cu_tokens, int size) {
  aether::begin_kernel();
  aether::adjust_listed_tokens(out, logits, tokens, cu_tokens, size,
                               [&](float, int, int) { return aether::Max::kNeutral; });  // -inf
}

extern "C" __global__ void adjust_logits_mask_tokens(float* out, const float* logits, const int* mask, int size,
                                                     int num_words) {
  aether::begin_kernel();
  constexpr int kWide = aether::Vector<float>::size;
  const int64_t row = blockIdx.x;
  const int begin = static_cast<int>(blockIdx.y) * aether::kLogitsPerBlock;
  const int end = min(begin + aether::kLogitsPerBlock, size);
  out += row * size;
  logits += row * size;
  mask += row * num_words;
  if (aether::is_vectorizable(out, size) && aether::is_vectorizable(logits, size)) {
#pragma unroll 4
    for (int i = begin + static_cast<int>(threadIdx.x) * kWide; i < end; i += static_cast<int>(blockDim.x) * kWide) {
      aether::mask_vec4(out + i, logits + i, mask[i / 32] >> (i % 32));
    }
    return;
  }
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += static_cast<int>(blockDim.x)) {
    const bool is_allowed = mask[i / 32] >> (i % 32) & 1;
    out[i] = is_allowed ? logits[i] : aether::Max::kNeutral;  // -inf
  }
}
