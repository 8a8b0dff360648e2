#include "bindings/bindings.h"
#include "parallel.h"

namespace py = pybind11;

namespace aether::cpu {

void bind_team(py::module_& module) {
  py::class_<Team, std::shared_ptr<Team>>(module, "Team")
      .def(py::init([](int num_workers) { return held(new Team(num_workers)); }))
      .def_property_readonly("num_workers", &Team::num_workers)
      .def("set_num_workers", &Team::set_num_workers, py::call_guard<ReleasedGil>());
}

}  // namespace aether::cpu
