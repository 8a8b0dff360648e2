#include "machine_limits_probes.h"

#if defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>

namespace aether::cpu {
namespace {

constexpr int kNumChains = 16;

}  // namespace

float int8_rate_neondot(int64_t num_rounds, double* num_operations) {
  const int8x16_t ones = vdupq_n_s8(1);
  int32x4_t chains[kNumChains];
  for (int32x4_t& chain : chains) chain = vdupq_n_s32(0);
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (int32x4_t& chain : chains) chain = vdotq_s32(chain, ones, ones);
  }
  *num_operations = 2.0 * 16 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = vaddq_s32(chains[0], chains[i]);
  return static_cast<float>(vaddvq_s32(chains[0]));
}

}  // namespace aether::cpu

#endif
