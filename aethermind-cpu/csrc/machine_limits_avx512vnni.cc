#include "machine_limits_probes.h"

#if defined(__AVX512VNNI__)

#include <immintrin.h>

namespace aether::cpu {
namespace {

constexpr int kNumChains = 16;

}  // namespace

float int8_rate_avx512vnni(int64_t num_rounds, double* num_operations) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i chains[kNumChains];
  for (__m512i& chain : chains) chain = _mm512_setzero_si512();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m512i& chain : chains) chain = _mm512_dpbusd_epi32(chain, ones, ones);
  }
  *num_operations = 2.0 * 64 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm512_add_epi32(chains[0], chains[i]);
  return static_cast<float>(_mm512_reduce_add_epi32(chains[0]));
}

}  // namespace aether::cpu

#endif
