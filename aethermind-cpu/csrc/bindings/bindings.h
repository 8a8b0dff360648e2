// Python bindings, one file per class. They convert arguments only: errors are C++ exceptions, which the Python layer
// turns into messages.
#ifndef AETHER_CPU_BINDINGS_BINDINGS_H
#define AETHER_CPU_BINDINGS_BINDINGS_H

#include <pybind11/pybind11.h>

#include "bindings/released_gil.h"

namespace aether::cpu {

void bind_cpu_features(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_machine_limits(pybind11::module_& module);
void bind_allocator(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_stream(pybind11::module_& module);
void bind_team(pybind11::module_& module);

}  // namespace aether::cpu

#endif  // AETHER_CPU_BINDINGS_BINDINGS_H
