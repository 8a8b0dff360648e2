#include <cstring>

#include "machine_limits_probes.h"

namespace aether::cpu {
namespace {

// Vectors of 16 bytes exist on every CPU family in use; the compiler maps them to its baseline registers.
typedef float Floats __attribute__((vector_size(16)));
typedef uint64_t Words __attribute__((vector_size(16)));

constexpr int kNumChains = 8;

}  // namespace

uint64_t read_portable(const void* data, size_t nbytes) {
  const auto* words = static_cast<const Words*>(data);
  Words sums[kNumChains] = {};
  for (size_t i = 0; i < nbytes / sizeof(Words); i += kNumChains) {
    for (int chain = 0; chain < kNumChains; ++chain) sums[chain] += words[i + chain];
  }
  Words total = {};
  for (const Words& sum : sums) total += sum;
  return total[0] ^ total[1];
}

float float32_rate_portable(int64_t num_rounds, double* num_operations) {
  const Floats factor = {0.5f, 0.5f, 0.5f, 0.5f};
  const Floats term = {1.0f, 1.0f, 1.0f, 1.0f};
  Floats chains[kNumChains] = {};
  for (int64_t round = 0; round < num_rounds; ++round) {
    for (Floats& chain : chains) chain = chain * factor + term;
  }
  *num_operations = 2.0 * 4 * kNumChains * static_cast<double>(num_rounds);
  Floats total = {};
  for (const Floats& chain : chains) total += chain;
  return total[0] + total[1] + total[2] + total[3];
}

}  // namespace aether::cpu
