#include "cpu_features.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"

namespace aether::cpu {

void bind_cpu_features(pybind11::module_& module) {
  module.def("cpu_features", [] { return cpu_features().names(); });
}

}  // namespace aether::cpu
