// Packing of quantised weights, compiled for this instruction set.
#define AETHER_ISA quantized_pack_portable
#include "kernels/isa_tables.h"
#include "kernels/quantized_pack.h"

namespace aether::cpu {

bool pack_quantized_portable(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                             int64_t row_begin, int64_t num_rows, int64_t cols, char* panels) {
  return AETHER_ISA::pack_panels(layout, shape, source, row_begin, num_rows, cols, panels);
}

}  // namespace aether::cpu
