// The tables of kernels and packing functions that each instruction set level defines in a translation unit of its own,
// and the CPU features that they require.
#pragma once

#include "kernels/quantized_layout.h"
#include "kernels/registry.h"

namespace aether::cpu {

extern const std::span<const KernelEntry> kPortableAttention;
extern const std::span<const KernelEntry> kPortableMatrix;
extern const std::span<const KernelEntry> kPortableVector;
extern const std::span<const KernelEntry> kPortableCopies;
extern const std::span<const KernelEntry> kAvx2Attention;
extern const std::span<const KernelEntry> kAvx2Matrix;
extern const std::span<const KernelEntry> kAvx2Vector;
extern const std::span<const KernelEntry> kAvx512Attention;
extern const std::span<const KernelEntry> kAvx512Matrix;
extern const std::span<const KernelEntry> kAvx512Vector;
extern const std::span<const KernelEntry> kAvx512Bf16Attention;
extern const std::span<const KernelEntry> kAvx512Bf16Matrix;
extern const std::span<const KernelEntry> kAmxMatrix;
extern const std::span<const KernelEntry> kNeonAttention;
extern const std::span<const KernelEntry> kNeonMatrix;
extern const std::span<const KernelEntry> kNeonVector;

extern const std::span<const KernelEntry> kPortableQuantized;
extern const std::span<const KernelEntry> kQuantizedRows;
extern const std::span<const KernelEntry> kAvx2Quantized;
extern const std::span<const KernelEntry> kAvx2VnniQuantized;
extern const std::span<const KernelEntry> kAvx512Quantized;
extern const std::span<const KernelEntry> kAvx512VnniQuantized;
extern const std::span<const KernelEntry> kAmxQuantized;
extern const std::span<const KernelEntry> kNeonQuantized;
extern const std::span<const KernelEntry> kNeonDotQuantized;
extern const std::span<const KernelEntry> kNeonI8mmQuantized;

bool runs_anywhere();
bool has_avx2();
bool has_avx2_vnni();
bool has_avx512();
bool has_avx512_vnni();
bool has_avx512_bf16();
bool has_amx();
bool has_neon();
bool has_neon_dot();
bool has_neon_i8mm();

// pack_quantized of one instruction set; `panels` is the panel of the first row.
using QuantizedPackFn = bool (*)(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                                 int64_t row_begin, int64_t num_rows, int64_t cols, char* panels);

bool pack_quantized_portable(const QuantizedLayout&, const PanelShape&, const QuantizedSource&, int64_t, int64_t,
                             int64_t, char*);
bool pack_quantized_avx2(const QuantizedLayout&, const PanelShape&, const QuantizedSource&, int64_t, int64_t, int64_t,
                         char*);
bool pack_quantized_avx512(const QuantizedLayout&, const PanelShape&, const QuantizedSource&, int64_t, int64_t, int64_t,
                           char*);

}  // namespace aether::cpu
