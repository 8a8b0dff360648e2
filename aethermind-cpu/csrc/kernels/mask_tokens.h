// -inf at the tokens whose bit in the row's mask is 0. `out` may be the logits' own memory.
#pragma once

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kTokensOfWord = 32;

inline constexpr uint32_t kBitOfToken[kTokensOfWord] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

// The first `count` tokens of one word of the mask. Words with all, some and none of their tokens follow each other
// without a pattern, so a branch among them would cost more than the work: with a constant count this is a blend.
AETHER_INLINE void mask_word(const float* source, float* target, uint32_t allowed, int64_t count) {
  float kept[kTokensOfWord];  // all are read before any is written, as both may be the same memory
  for (int64_t i = 0; i < count; ++i) {
    const float logit = source[i];
    kept[i] = (allowed & kBitOfToken[i]) != 0 ? logit : -__builtin_inff();
  }
  for (int64_t i = 0; i < count; ++i) target[i] = kept[i];
}

inline void mask_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t vocab = in[0].shape[1], words = in[1].shape[1], whole_words = vocab / kTokensOfWord;
  // In parts of rows, so that one row keeps all workers busy.
  const int64_t parts = divide_up(vocab, kTokensOfWord);
  const Range range = share(team, in[0].shape[0] * parts);
  for (int64_t part = range.begin; part < range.end;) {
    const int64_t row = part / parts, first = part - row * parts, end = smaller(parts, first + range.end - part);
    const float* source = data<const float>(in[0]) + row * vocab;
    float* target = data<float>(out[0]) + row * vocab;
    const uint32_t* mask = data<const uint32_t>(in[1]) + row * words;
    int64_t word = first;
    for (; word < smaller(end, whole_words); ++word)
      mask_word(source + word * kTokensOfWord, target + word * kTokensOfWord, mask[word], kTokensOfWord);
    if (word < end)
      mask_word(source + word * kTokensOfWord, target + word * kTokensOfWord, mask[word], vocab % kTokensOfWord);
    part += end - first;
  }
}

}  // namespace aether::cpu::AETHER_ISA
