#include "allocator.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "allocation_count.h"
#include "bindings/bindings.h"

namespace py = pybind11;

namespace aether::cpu {

void bind_allocator(py::module_& module) {
  module.def("allocation_count", &allocation_count);

  module.def(
      "touch_pages",
      [](const std::vector<std::pair<uintptr_t, size_t>>& blocks) {
        for (const auto& [address, nbytes] : blocks) touch_pages(reinterpret_cast<void*>(address), nbytes);
      },
      py::call_guard<ReleasedGil>());

  py::class_<Allocator, std::shared_ptr<Allocator>>(module, "Allocator")
      .def(py::init<>())
      // The address, or 0 when out of memory.
      .def("allocate",
           [](Allocator& self, size_t nbytes) { return reinterpret_cast<uintptr_t>(self.allocate(nbytes)); })
      .def("release", [](Allocator& self, uintptr_t address,
                         size_t nbytes) { self.release(reinterpret_cast<void*>(address), nbytes); })
      .def("stats", [](const Allocator& self) {
        const MemoryStats stats = self.stats();
        return py::make_tuple(stats.allocated_bytes, stats.reserved_bytes, stats.peak_bytes, stats.num_allocations);
      });
}

}  // namespace aether::cpu
