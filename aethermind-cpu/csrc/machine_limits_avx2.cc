#include "machine_limits_probes.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

namespace aether::cpu {
namespace {

// Of sixteen registers two hold the operands.
constexpr int kNumChains = 12;

}  // namespace

uint64_t read_avx2(const void* data, size_t nbytes) {
  const auto* words = static_cast<const __m256i*>(data);
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (size_t i = 0; i < nbytes / sizeof(__m256i); i += 8) {
    for (int chain = 0; chain < 8; ++chain) {
      sums[chain] = _mm256_add_epi64(sums[chain], _mm256_load_si256(words + i + chain));
    }
  }
  for (int chain = 1; chain < 8; ++chain) sums[0] = _mm256_add_epi64(sums[0], sums[chain]);
  return static_cast<uint64_t>(sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3]);
}

float float32_rate_avx2(int64_t num_rounds, double* num_operations) {
  const __m256 factor = _mm256_set1_ps(0.5f);
  const __m256 term = _mm256_set1_ps(1.0f);
  __m256 chains[kNumChains];
  for (__m256& chain : chains) chain = _mm256_setzero_ps();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m256& chain : chains) chain = _mm256_fmadd_ps(chain, factor, term);
  }
  *num_operations = 2.0 * 8 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm256_add_ps(chains[0], chains[i]);
  return chains[0][0] + chains[0][3] + chains[0][4] + chains[0][7];
}

// Bytes are multiplied by way of 16-bit sums: three instructions for four products a lane.
float int8_rate_avx2(int64_t num_rounds, double* num_operations) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i bytes = _mm256_set1_epi8(1);
  __m256i chains[kNumChains];
  for (__m256i& chain : chains) chain = _mm256_setzero_si256();
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (__m256i& chain : chains) {
      __asm__("" : "+x"(bytes));  // products that never change would be computed once
      chain = _mm256_add_epi32(chain, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, bytes), ones));
    }
  }
  *num_operations = 2.0 * 32 * kNumChains * static_cast<double>(num_rounds);
  for (int i = 1; i < kNumChains; ++i) chains[0] = _mm256_add_epi32(chains[0], chains[i]);
  return static_cast<float>(chains[0][0] + chains[0][1] + chains[0][2] + chains[0][3]);
}

}  // namespace aether::cpu

#endif
