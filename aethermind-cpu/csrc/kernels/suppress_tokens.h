// -inf at the tokens of each row's list. `out` may be the logits' own memory.
#pragma once

#include <cstring>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Rows of `out` equal to the logits, changed at the listed tokens by `change(row, place in the list, logit)`.
template <class F>
AETHER_INLINE void change_listed_tokens(const am_tensor& logits, const am_tensor& tokens, const am_tensor& cu_tokens,
                                        const am_tensor& out, const am_team* team, F change) {
  const int64_t vocab = logits.shape[1];
  const int32_t* token = data<const int32_t>(tokens);
  const int32_t* cu = data<const int32_t>(cu_tokens);
  const Range rows = share(team, logits.shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* source = data<const float>(logits) + r * vocab;
    float* target = data<float>(out) + r * vocab;
    if (source != target) std::memcpy(target, source, static_cast<size_t>(vocab) * sizeof(float));
    for (int32_t i = cu[r]; i < cu[r + 1]; ++i) target[token[i]] = change(r, i, target[token[i]]);
  }
}

inline void suppress_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  change_listed_tokens(in[0], in[1], in[2], out[0], team, [](int64_t, int32_t, float) { return -__builtin_inff(); });
}

}  // namespace aether::cpu::AETHER_ISA
