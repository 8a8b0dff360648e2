// The measured limits of this machine: the roofline that kernels are compared with.
#ifndef AETHER_CPU_MACHINE_LIMITS_H
#define AETHER_CPU_MACHINE_LIMITS_H

#include <string_view>

#include "parallel.h"

namespace aether::cpu {

// Bytes read per second from memory, and arithmetic operations per second (a multiply-add is two) by element type. A
// type without its own instructions is computed in float32 and has float32's rate.
struct Limits {
  double memory_bytes_per_s;
  double float32_flops_per_s;
  double bfloat16_flops_per_s;
  double int8_ops_per_s;
};

// Measures with all workers of `team` in well under 1.5 s; the best of several passes counts. Uses instruction sets up
// to `highest_level`, a level of aethermind_cpu.isa, or all of them. Throws std::bad_alloc where a buffer much larger
// than the caches cannot be allocated.
Limits measure_limits(Team& team, std::string_view highest_level = {});

}  // namespace aether::cpu

#endif  // AETHER_CPU_MACHINE_LIMITS_H
