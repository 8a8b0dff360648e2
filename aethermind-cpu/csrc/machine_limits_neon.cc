#include "machine_limits_probes.h"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace aether::cpu {
namespace {

// Enough to hide a latency of four cycles behind four multiply-adds a cycle; memory is read as on any CPU.
constexpr int kNumChains = 16;

}  // namespace

float float32_rate_neon(int64_t num_rounds, double* num_operations) {
  const float32x4_t factor = vdupq_n_f32(0.5f);
  const float32x4_t term = vdupq_n_f32(1.0f);
  float32x4_t chains[kNumChains];
  for (float32x4_t& chain : chains) chain = vdupq_n_f32(0.0f);
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (float32x4_t& chain : chains) chain = vfmaq_f32(chain, factor, term);
  }
  *num_operations = 2.0 * 4 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = vaddq_f32(chains[0], chains[i]);
  return vaddvq_f32(chains[0]);
}

}  // namespace aether::cpu

#endif
