// Each listed token's logit plus the bias that stands beside it in the list. Lists hold no token twice.
#pragma once

#include "kernels/suppress_tokens.h"

namespace aether::cpu::AETHER_ISA {

inline void bias_tokens(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const float* bias = data<const float>(in[3]);
  change_listed_tokens(in[0], in[1], in[2], out[0], team,
                       [&](int64_t, int32_t i, float logit) { return logit + bias[i]; });
}

}  // namespace aether::cpu::AETHER_ISA
