// The probes of machine_limits.cc. Each instruction set level has a set of them (machine_limits_<level>.cc).
#ifndef AETHER_CPU_MACHINE_LIMITS_PROBES_H
#define AETHER_CPU_MACHINE_LIMITS_PROBES_H

#include <cstddef>
#include <cstdint>

namespace aether::cpu {

// Reads `nbytes` (a multiple of 4096) from a 64-byte aligned address. The result only keeps the compiler from removing
// the reads.
using ReadProbe = float (*)(const void* data, size_t nbytes);

// Computes `num_rounds` rounds of independent multiply-adds in registers, and stores the number of operations in
// `*num_operations` (a multiply-add is two). The result only keeps the compiler from removing them.
using RateProbe = float (*)(int64_t num_rounds, double* num_operations);

// Null where the instruction set is no faster than a lower one.
struct Probes {
  ReadProbe read = nullptr;
  RateProbe float32 = nullptr, bfloat16 = nullptr, int8 = nullptr;
};

extern const Probes kPortableProbes;
extern const Probes kAvx2Probes;
extern const Probes kAvx2VnniProbes;
extern const Probes kAvx512Probes;
extern const Probes kAvx512VnniProbes;
extern const Probes kAvx512Bf16Probes;
extern const Probes kAmxProbes;
extern const Probes kNeonProbes;
extern const Probes kNeonDotProbes;

}  // namespace aether::cpu

#endif  // AETHER_CPU_MACHINE_LIMITS_PROBES_H
