#include "machine_limits.h"

#include "bindings/bindings.h"

namespace py = pybind11;

namespace aether::cpu {

void bind_machine_limits(py::module_& module) {
  py::class_<Limits>(module, "Limits")
      .def_readonly("memory_bytes_per_s", &Limits::memory_bytes_per_s)
      .def_readonly("float32_flops_per_s", &Limits::float32_flops_per_s)
      .def_readonly("bfloat16_flops_per_s", &Limits::bfloat16_flops_per_s)
      .def_readonly("int8_ops_per_s", &Limits::int8_ops_per_s);
  module.def("measure_limits", &measure_limits, py::call_guard<ReleasedGil>());
}

}  // namespace aether::cpu
