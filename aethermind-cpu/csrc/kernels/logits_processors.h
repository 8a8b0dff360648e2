// Logits processors: suppress_tokens, bias_tokens, repetition_penalty, mask_tokens. `out` may be the logits' own
// memory; a row's list holds no token twice.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Copies the logits to `out` and replaces those of the listed tokens by `change(row, index into tokens, logit)`.
template <class F>
AETHER_INLINE void change_listed_tokens(const am_tensor& logits, const am_tensor& tokens, const am_tensor& cu_tokens,
                                        const am_tensor& out, const am_team* team, F adjust) {
  const int64_t vocab = logits.shape[1];
  const int32_t* token = data<const int32_t>(tokens);
  const int32_t* cu = data<const int32_t>(cu_tokens);
  const Range rows = share(team, logits.shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* source = data<const float>(logits) + r * vocab;
    float* target = data<float>(out) + r * vocab;
    if (source != target) std::memcpy(target, source, static_cast<size_t>(vocab) * sizeof(float));
    for (int32_t i = cu[r]; i < cu[r + 1]; ++i) target[token[i]] = adjust(r, i, target[token[i]]);
  }
}

// Sets the logits of each row's listed tokens to -inf.
inline void suppress_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  change_listed_tokens(in[0], in[1], in[2], out[0], team, [](int64_t, int32_t, float) { return -__builtin_inff(); });
}

// Adds the bias of each listed token to its logit.
inline void bias_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const float* bias = data<const float>(in[3]);
  change_listed_tokens(in[0], in[1], in[2], out[0], team,
                       [&](int64_t, int32_t i, float logit) { return logit + bias[i]; });
}

// Divides positive logits of listed tokens by the row's penalty and multiplies the others by it (CTRL, Keskar et al.,
// 2019).
inline void repetition_penalty(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const float* penalty = data<const float>(in[3]);
  change_listed_tokens(in[0], in[1], in[2], out[0], team, [&](int64_t r, int32_t, float logit) {
    return logit > 0.0f ? logit / penalty[r] : logit * penalty[r];
  });
}

inline constexpr int64_t kTokensPerWord = 32;

inline constexpr uint32_t kBitOfToken[kTokensPerWord] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

// Masks the first `count` tokens of one word. Allowed and forbidden tokens follow no pattern that a branch predictor
// could learn; with a constant count the loop is a blend.
AETHER_INLINE void mask_word(const float* source, float* target, uint32_t allowed, int64_t count) {
  float kept[kTokensPerWord];  // all reads come before the writes, because source and target may alias
  for (int64_t i = 0; i < count; ++i) {
    const float logit = source[i];
    kept[i] = (allowed & kBitOfToken[i]) != 0 ? logit : -__builtin_inff();
  }
  for (int64_t i = 0; i < count; ++i) target[i] = kept[i];
}

// Sets the logits of tokens whose bit in the row's mask is 0 to -inf.
inline void mask_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t vocab = in[0].shape[1], words = in[1].shape[1], whole_words = vocab / kTokensPerWord;
  // The unit of work is one mask word of a row, so that all workers take part even if there is only one row.
  const int64_t parts = ceil_div(vocab, kTokensPerWord);
  const Range range = share(team, in[0].shape[0] * parts);
  for (int64_t part = range.begin; part < range.end;) {
    const int64_t row = part / parts, first = part - row * parts, end = smaller(parts, first + range.end - part);
    const float* source = data<const float>(in[0]) + row * vocab;
    float* target = data<float>(out[0]) + row * vocab;
    const uint32_t* mask = data<const uint32_t>(in[1]) + row * words;
    int64_t word = first;
    for (; word < smaller(end, whole_words); ++word)
      mask_word(source + word * kTokensPerWord, target + word * kTokensPerWord, mask[word], kTokensPerWord);
    if (word < end)
      mask_word(source + word * kTokensPerWord, target + word * kTokensPerWord, mask[word], vocab % kTokensPerWord);
    part += end - first;
  }
}

}  // namespace aether::cpu::AETHER_ISA
