#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "kernels/quantized_layout.h"
#include "kernels/registry.h"

namespace py = pybind11;

namespace aether::cpu {
namespace {

py::list as_list(std::span<const KernelEntry> table) {
  py::list entries;
  for (const KernelEntry& entry : table) entries.append(py::cast(&entry, py::return_value_policy::reference));
  return entries;
}

}  // namespace

void bind_kernels(py::module_& module) {
  py::class_<PackEntry>(module, "PackEntry")
      .def_property_readonly("name", [](const PackEntry& self) { return self.name; })
      .def("packed_bytes",
           [](const PackEntry& self, int64_t rows, int64_t cols) { return self.packed_bytes(rows, cols); })
      .def(
          "pack",
          [](const PackEntry& self, uintptr_t source, int64_t rows, int64_t cols, uintptr_t destination) {
            self.pack(reinterpret_cast<const void*>(source), rows, cols, reinterpret_cast<void*>(destination));
          },
          py::call_guard<ReleasedGil>());

  py::class_<KernelEntry>(module, "KernelEntry")
      .def_property_readonly("operator_name", [](const KernelEntry& self) { return self.operator_name; })
      .def_property_readonly("variant", [](const KernelEntry& self) { return self.variant; })
      .def_property_readonly("dtype", [](const KernelEntry& self) { return static_cast<int>(self.dtype); })
      .def_readonly("priority", &KernelEntry::priority)
      .def_readonly("multiplies_bytes", &KernelEntry::multiplies_bytes)
      .def_readonly("is_batch_invariant", &KernelEntry::is_batch_invariant)
      .def_property_readonly("is_supported", [](const KernelEntry& self) { return self.is_supported_by_cpu(); })
      .def_property_readonly(
          "capsule",
          [](const KernelEntry& self) { return py::capsule(static_cast<const void*>(self.kernel), AM_KERNEL_CAPSULE); })
      // (input index, layout); the table has static storage.
      .def_property_readonly("packs", [](const KernelEntry& self) {
        py::list packs;
        for (int i = 0; i < self.num_packs; ++i) {
          packs.append(
              py::make_tuple(self.packs[i].input, py::cast(self.packs[i].pack, py::return_value_policy::reference)));
        }
        return packs;
      });

  module.def("kernel_table", [] { return as_list(kernel_table()); });
  module.def("quantized_kernel_table", [] { return as_list(quantized_kernel_table()); });

  py::class_<QuantizedLayout>(module, "QuantizedLayout")
      .def(py::init([](int32_t bits, int32_t block, bool has_zero_point, bool has_offset, bool has_super_blocks) {
             return QuantizedLayout{bits, block, has_zero_point, has_offset, has_super_blocks};
           }),
           py::arg("bits"), py::arg("block"), py::arg("has_zero_point"), py::arg("has_offset"),
           py::arg("has_super_blocks"))
      .def_static("mxfp4", [] { return QuantizedLayout{4, kGroupK, 0, 0, 0, 1}; })
      .def("packed_bytes",
           [](const QuantizedLayout& self, int64_t rows, int64_t cols) { return quantized_bytes(self, rows, cols); })
      .def(
          "pack_values",
          [](const QuantizedLayout& self, uintptr_t values, int dtype, int64_t row_begin, int64_t num_rows,
             int64_t cols, uintptr_t destination) {
            const QuantizedSource source = {reinterpret_cast<const void*>(values), static_cast<am_dtype>(dtype),
                                            nullptr, nullptr, nullptr};
            return pack_quantized(self, source, row_begin, num_rows, cols, reinterpret_cast<void*>(destination));
          },
          py::call_guard<ReleasedGil>())
      .def(
          "pack_codes",
          [](const QuantizedLayout& self, uintptr_t codes, uintptr_t scales, uintptr_t zeros, uintptr_t offsets,
             uintptr_t super_scales, int64_t row_begin, int64_t num_rows, int64_t cols, uintptr_t destination) {
            const QuantizedSource source = {nullptr,
                                            AM_FLOAT32,
                                            reinterpret_cast<const uint8_t*>(codes),
                                            reinterpret_cast<const void*>(scales),
                                            reinterpret_cast<const uint8_t*>(zeros),
                                            reinterpret_cast<const void*>(offsets),
                                            reinterpret_cast<const uint16_t*>(super_scales)};
            pack_quantized(self, source, row_begin, num_rows, cols, reinterpret_cast<void*>(destination));
          },
          py::call_guard<ReleasedGil>());
}

}  // namespace aether::cpu
