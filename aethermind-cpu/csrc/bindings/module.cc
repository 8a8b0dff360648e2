#include "bindings/bindings.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native parts of the cpu backend; see the headers in csrc for ownership, threads and failures.";
  aether::cpu::bind_cpu_features(module);
  aether::cpu::bind_allocator(module);
  aether::cpu::bind_team(module);
  aether::cpu::bind_plan(module);
  aether::cpu::bind_stream(module);
  aether::cpu::bind_machine_limits(module);
  aether::cpu::bind_kernels(module);
}
