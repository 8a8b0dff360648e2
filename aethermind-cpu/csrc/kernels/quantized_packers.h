// What the instruction sets' translation units give to quantized_layout.cc.
#pragma once

#include "kernels/quantized_layout.h"

namespace aether::cpu {

// `panels` is where the first row's panel lies.
using QuantizedPackFn = bool (*)(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                                 int64_t row_begin, int64_t num_rows, int64_t cols, char* panels);

bool pack_quantized_portable(const QuantizedLayout&, const PanelShape&, const QuantizedSource&, int64_t, int64_t,
                             int64_t, char*);
bool pack_quantized_avx2(const QuantizedLayout&, const PanelShape&, const QuantizedSource&, int64_t, int64_t, int64_t,
                         char*);
bool pack_quantized_avx512(const QuantizedLayout&, const PanelShape&, const QuantizedSource&, int64_t, int64_t, int64_t,
                           char*);

}  // namespace aether::cpu
