#include "machine_limits_probes.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)

#include <immintrin.h>

namespace aether::cpu {
namespace {

constexpr int kNumChains = 16;

}  // namespace

uint64_t read_avx512(const void* data, size_t nbytes) {
  const auto* lines = static_cast<const __m512i*>(data);
  __m512i sums[8];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (size_t i = 0; i < nbytes / sizeof(__m512i); i += 8) {
    for (int chain = 0; chain < 8; ++chain) {
      sums[chain] = _mm512_add_epi64(sums[chain], _mm512_load_si512(lines + i + chain));
    }
  }
  for (int chain = 1; chain < 8; ++chain) sums[0] = _mm512_add_epi64(sums[0], sums[chain]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sums[0]));
}

float float32_rate_avx512(int64_t num_rounds, double* num_operations) {
  const __m512 factor = _mm512_set1_ps(0.5f);
  const __m512 term = _mm512_set1_ps(1.0f);
  __m512 chains[kNumChains];
  for (__m512& chain : chains) chain = _mm512_setzero_ps();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m512& chain : chains) chain = _mm512_fmadd_ps(chain, factor, term);
  }
  *num_operations = 2.0 * 16 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm512_add_ps(chains[0], chains[i]);
  return _mm512_reduce_add_ps(chains[0]);
}

// Bytes are multiplied by way of 16-bit sums: three instructions for four products a lane.
float int8_rate_avx512(int64_t num_rounds, double* num_operations) {
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i bytes = _mm512_set1_epi8(1);
  __m512i chains[kNumChains];
  for (__m512i& chain : chains) chain = _mm512_setzero_si512();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m512i& chain : chains) {
      __asm__("" : "+v"(bytes));  // products that never change would be computed once
      chain = _mm512_add_epi32(chain, _mm512_madd_epi16(_mm512_maddubs_epi16(bytes, bytes), ones));
    }
  }
  *num_operations = 2.0 * 64 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm512_add_epi32(chains[0], chains[i]);
  return static_cast<float>(_mm512_reduce_add_epi32(chains[0]));
}

}  // namespace aether::cpu

#endif
