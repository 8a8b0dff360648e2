#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "parallel.h"

namespace py = pybind11;

namespace aether::cpu {
namespace {

using Processors = std::vector<std::vector<int>>;  // of each worker; the outer list may be empty

std::vector<CpuSet> as_cpu_sets(const Processors& processors) { return {processors.begin(), processors.end()}; }

}  // namespace

void bind_team(py::module_& module) {
  py::class_<Team, std::shared_ptr<Team>>(module, "Team")
      .def(py::init([](int num_workers, const Processors& cpu_sets, const std::vector<int>& nodes) {
             return share_released(new Team(num_workers, as_cpu_sets(cpu_sets), nodes));
           }),
           py::arg("num_workers"), py::arg("cpu_sets") = Processors(), py::arg("nodes") = std::vector<int>())
      .def_property_readonly("num_workers", &Team::num_workers)
      .def(
          "set_num_workers",
          [](Team& team, int num_workers, const Processors& cpu_sets, const std::vector<int>& nodes) {
            team.set_num_workers(num_workers, as_cpu_sets(cpu_sets), nodes);
          },
          py::arg("num_workers"), py::arg("cpu_sets") = Processors(), py::arg("nodes") = std::vector<int>(),
          py::call_guard<ReleasedGil>());
}

}  // namespace aether::cpu
