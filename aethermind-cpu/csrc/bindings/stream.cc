#include "stream.h"

#include <pybind11/stl.h>

#include <vector>

#include "bindings/bindings.h"
#include "event.h"

namespace py = pybind11;

namespace aether::cpu {
namespace {

// A fixed array, because a run allocates nothing.
Symbols to_symbols(const py::tuple& numbers, const NativePlan& plan) {
  if (numbers.size() != plan.num_symbols())
    throw py::value_error("a run needs one number for every symbol of its plan");
  Symbols symbols{};
  for (size_t i = 0; i < numbers.size(); ++i) symbols[i] = numbers[i].cast<int64_t>();
  return symbols;
}

PlanTask to_task(const std::shared_ptr<NativePlan>& plan, const py::tuple& numbers, size_t begin, size_t end) {
  if (begin > end || end > plan->num_steps()) throw py::value_error("a run lies within its plan's steps");
  return {plan, to_symbols(numbers, *plan), begin, end};
}

}  // namespace

void bind_stream(py::module_& module) {
  using ReleaseGil = py::call_guard<ReleasedGil>;

  py::class_<Stream, std::shared_ptr<Stream>>(module, "Stream")
      .def(py::init([](std::shared_ptr<Team> team) { return share_released(new Stream(std::move(team))); }))
      .def("run",
           [](Stream& self, const std::shared_ptr<NativePlan>& plan, const py::tuple& numbers, size_t begin,
              size_t end) {
             PlanTask task = to_task(plan, numbers, begin, end);
             const ReleasedGil released;
             self.submit(std::move(task));
           })
      // Blocks. Returns the time before every step and after the last one, in nanoseconds.
      .def("run_timed",
           [](Stream& self, const std::shared_ptr<NativePlan>& plan, const py::tuple& numbers, size_t begin,
              size_t end) {
             PlanTask task = to_task(plan, numbers, begin, end);
             std::vector<int64_t> timestamps_ns(end - begin + 1);
             task.timestamps_ns = timestamps_ns.data();
             {
               const ReleasedGil released;
               self.submit(std::move(task));
               self.synchronize();
             }
             return timestamps_ns;
           })
      .def(
          "copy",
          [](Stream& self, uintptr_t destination, uintptr_t source, size_t nbytes) {
            self.submit(CopyTask{destination, source, nbytes});
          },
          ReleaseGil())
      .def(
          "fill",
          [](Stream& self, uintptr_t destination, size_t nbytes, int byte) {
            self.submit(FillTask{destination, nbytes, byte});
          },
          ReleaseGil())
      .def("query", &Stream::query)
      .def("synchronize", &Stream::synchronize, ReleaseGil());

  py::class_<Event, std::shared_ptr<Event>>(module, "Event")
      .def(py::init<>())
      .def("record", &Event::record, ReleaseGil())
      .def("make_wait", &Event::make_wait, ReleaseGil())
      .def("query", &Event::query)
      .def("synchronize", &Event::synchronize, ReleaseGil())
      .def_property_readonly("reached_at_ns", &Event::reached_at_ns);
}

}  // namespace aether::cpu
