// Each file here binds one noun to Python and decides nothing: errors are the C++ exceptions, turned into sentences by
// the Python layer.
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
