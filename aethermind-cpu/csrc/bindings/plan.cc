#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "native_plan.h"

namespace py = pybind11;

namespace aether::cpu {
namespace {

const am_kernel* kernel_of(const py::object& capsule) {
  if (!PyCapsule_CheckExact(capsule.ptr())) {
    throw py::value_error("its `native` is of type " + std::string(Py_TYPE(capsule.ptr())->tp_name) +
                          " instead of a PyCapsule");
  }
  if (!PyCapsule_IsValid(capsule.ptr(), AM_KERNEL_CAPSULE)) {
    const char* name = PyCapsule_GetName(capsule.ptr());
    throw py::value_error("its capsule is named '" + std::string(name == nullptr ? "" : name) + "' instead of '" +
                          AM_KERNEL_CAPSULE + "'");
  }
  return static_cast<const am_kernel*>(PyCapsule_GetPointer(capsule.ptr(), AM_KERNEL_CAPSULE));
}

}  // namespace

void bind_plan(py::module_& module) {
  py::class_<Operand>(module, "Operand")
      .def(py::init([](uintptr_t address, int32_t dtype, const std::vector<std::pair<int32_t, int64_t>>& dims) {
             Operand operand{address, dtype, {}};
             for (const auto& [symbol, value] : dims) operand.dims.push_back({symbol, value});
             return operand;
           }),
           py::arg("address"), py::arg("dtype"), py::arg("dims"));

  py::class_<Step>(module, "Step")
      .def(py::init([](const py::object& capsule, std::vector<std::optional<Operand>> inputs,
                       std::vector<Operand> outputs, std::vector<Attribute> attributes) {
             return Step{kernel_of(capsule), std::move(inputs), std::move(outputs), std::move(attributes)};
           }),
           py::arg("kernel"), py::arg("inputs"), py::arg("outputs"), py::arg("attributes"));

  py::class_<NativePlan, std::shared_ptr<NativePlan>>(module, "Plan")
      .def(py::init<const std::vector<int64_t>&, const std::vector<Step>&>(), py::arg("max_symbols"), py::arg("steps"))
      .def_property_readonly("num_steps", &NativePlan::num_steps)
      .def("prepare", py::overload_cast<Team&>(&NativePlan::prepare), py::call_guard<ReleasedGil>());
}

}  // namespace aether::cpu
