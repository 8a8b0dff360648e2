// The inner loops of the measurement, one set per instruction set. Only files compiled for an instruction set define
// its probes.
#ifndef AETHER_CPU_MACHINE_LIMITS_PROBES_H
#define AETHER_CPU_MACHINE_LIMITS_PROBES_H

#include <cstddef>
#include <cstdint>

namespace aether::cpu {

// Reads `nbytes` (a multiple of 4096) from a 64-byte aligned address. The result only keeps the reads from being
// optimised away.
using ReadProbe = uint64_t (*)(const void* data, size_t nbytes);

// Computes `num_rounds` rounds of independent multiply-adds in registers and stores how many operations that were in
// `*num_operations`.
using RateProbe = float (*)(int64_t num_rounds, double* num_operations);

uint64_t read_portable(const void* data, size_t nbytes);
float float32_rate_portable(int64_t num_rounds, double* num_operations);

#if defined(__x86_64__)
uint64_t read_avx2(const void* data, size_t nbytes);
float float32_rate_avx2(int64_t num_rounds, double* num_operations);
float int8_rate_avx2(int64_t num_rounds, double* num_operations);
float int8_rate_avx2vnni(int64_t num_rounds, double* num_operations);
uint64_t read_avx512(const void* data, size_t nbytes);
float float32_rate_avx512(int64_t num_rounds, double* num_operations);
float int8_rate_avx512(int64_t num_rounds, double* num_operations);
float int8_rate_avx512vnni(int64_t num_rounds, double* num_operations);
float bfloat16_rate_avx512(int64_t num_rounds, double* num_operations);
#elif defined(__aarch64__)
float float32_rate_neon(int64_t num_rounds, double* num_operations);
float int8_rate_neondot(int64_t num_rounds, double* num_operations);
#endif

}  // namespace aether::cpu

#endif  // AETHER_CPU_MACHINE_LIMITS_PROBES_H
