#include "machine_limits_probes.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace aether::cpu {
namespace {

constexpr int kNumChains = 16;

}  // namespace

float bfloat16_rate_avx512(int64_t num_rounds, double* num_operations) {
  const __m512bh ones = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f));
  __m512 chains[kNumChains];
  for (__m512& chain : chains) chain = _mm512_setzero_ps();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m512& chain : chains) chain = _mm512_dpbf16_ps(chain, ones, ones);
  }
  *num_operations = 2.0 * 32 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm512_add_ps(chains[0], chains[i]);
  return _mm512_reduce_add_ps(chains[0]);
}

}  // namespace aether::cpu

#endif
