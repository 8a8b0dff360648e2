// Each listed token's logit divided by the row's penalty when positive, else multiplied by it. Lists hold no token
// twice.
#pragma once

#include "kernels/suppress_tokens.h"

namespace aether::cpu::AETHER_ISA {

inline void repetition_penalty(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const float* penalty = data<const float>(in[3]);
  change_listed_tokens(in[0], in[1], in[2], out[0], team, [&](int64_t r, int32_t, float logit) {
    return logit > 0.0f ? logit / penalty[r] : logit * penalty[r];
  });
}

}  // namespace aether::cpu::AETHER_ISA
