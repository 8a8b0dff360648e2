#include "machine_limits_probes.h"

#if defined(__AVXVNNI__)

#include <immintrin.h>

namespace aether::cpu {
namespace {

constexpr int kNumChains = 12;

}  // namespace

float int8_rate_avx2vnni(int64_t num_rounds, double* num_operations) {
  const __m256i ones = _mm256_set1_epi8(1);
  __m256i chains[kNumChains];
  for (__m256i& chain : chains) chain = _mm256_setzero_si256();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m256i& chain : chains) chain = _mm256_dpbusd_avx_epi32(chain, ones, ones);
  }
  *num_operations = 2.0 * 32 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm256_add_epi32(chains[0], chains[i]);
  return static_cast<float>(chains[0][0] + chains[0][1] + chains[0][2] + chains[0][3]);
}

}  // namespace aether::cpu

#endif
