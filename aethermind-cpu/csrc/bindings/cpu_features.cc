#include "cpu_features.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "built_levels.h"

namespace aether::cpu {

void bind_cpu_features(pybind11::module_& module) {
  module.def("cpu_features", [] { return cpu_features().names(); });
  module.def("tile_support", [] {
    switch (tile_support()) {
      case TileSupport::kPresent:
        return "present";
      case TileSupport::kNotSaved:
        return "not saved";
      case TileSupport::kNotPermitted:
        return "not permitted";
      default:
        return "not in cpu";
    }
  });
  module.def("is_tile_unit_modelled", &is_tile_unit_modelled);
  // Instruction set levels of which all kernels were compiled, in order.
  module.attr("BUILT_LEVELS") = pybind11::str(AETHER_BUILT_LEVELS).attr("split")();
}

}  // namespace aether::cpu
