// -inf at the tokens whose bit in the row's mask is 0. `out` may be the logits' own memory.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kTokensOfWord = 32;

// The `count` tokens of one word of the mask.
AETHER_INLINE void mask_word(const float* source, float* target, uint32_t allowed, int64_t count) {
  // Words with all or no tokens are the rule: the mask of a string allows nearly all, that of a keyword nearly none.
  if (allowed == 0xffffffffu) {
    if (source != target) std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
  } else if (allowed == 0) {
    for (int64_t i = 0; i < count; ++i) target[i] = -__builtin_inff();
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = (allowed >> i & 1u) ? source[i] : -__builtin_inff();
  }
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
