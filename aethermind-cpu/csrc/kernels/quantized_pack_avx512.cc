// Packing of quantised weights, compiled for this instruction set.
#if defined(__x86_64__)
#define AETHER_ISA quantized_pack_avx512
#include "kernels/isa_tables.h"
#include "kernels/quantized_pack.h"

namespace aether::cpu {

bool pack_quantized_avx512(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                           int64_t row_begin, int64_t num_rows, int64_t cols, char* panels) {
  return AETHER_ISA::pack_panels(layout, shape, source, row_begin, num_rows, cols, panels);
}

}  // namespace aether::cpu

#endif
