#include "kernels/quantized_layout.h"

#include <cstring>

#include "built_levels.h"
#include "cpu_features.h"
#include "kernels/isa_tables.h"
#include "kernels/pack.h"

namespace aether::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

QuantizedPackFn packer() {
#if AETHER_BUILT_AVX512
  if (cpu_features().has_avx512()) return pack_quantized_avx512;
#endif
#if AETHER_BUILT_AVX2
  if (cpu_features().has_avx2()) return pack_quantized_avx2;
#endif
  return pack_quantized_portable;
}

}  // namespace

PanelShape panel_shape(const QuantizedLayout& layout, int64_t cols) {
  PanelShape shape;
  const int64_t block = layout.has_super_blocks ? kSuperBlock : layout.block;
  shape.num_groups = ceil_div(cols, kGroupK);
  shape.groups_per_block = block ? block / kGroupK : shape.num_groups;
  shape.num_blocks = block ? ceil_div(cols, block) : (cols > 0 ? 1 : 0);
  const int64_t shift_bytes = layout.has_zero_point ? kZeroBytes : layout.has_offset ? kOffsetBytes : 0;
  const int64_t scale_bytes = layout.has_super_blocks ? kSuperBlockScaleBytes
                              : layout.is_mxfp4       ? kExponentBytes
                                                      : kScaleBytes + shift_bytes;
  const int64_t group_bytes = layout.bits * kStepBytes;
  shape.block_bytes = scale_bytes + shape.groups_per_block * group_bytes;
  const int64_t bytes = shape.num_blocks * scale_bytes + shape.num_groups * group_bytes;
  shape.panel_bytes = ceil_div(bytes, kStepBytes) * kStepBytes;
  return shape;
}

size_t quantized_bytes(const QuantizedLayout& layout, int64_t rows, int64_t cols) {
  return static_cast<size_t>(kHeaderBytes + ceil_div(rows, kPanelColumns) * panel_shape(layout, cols).panel_bytes);
}

bool pack_quantized(const QuantizedLayout& layout, const QuantizedSource& source, int64_t row_begin, int64_t num_rows,
                    int64_t cols, void* packed) {
  char* out = static_cast<char*>(packed);
  if (row_begin == 0) {
    std::memset(out, 0, kHeaderBytes);
    std::memcpy(out, &layout, sizeof layout);
  }
  const PanelShape shape = panel_shape(layout, cols);
  char* panels = out + kHeaderBytes + row_begin / kPanelColumns * shape.panel_bytes;
  return packer()(layout, shape, source, row_begin, num_rows, cols, panels);
}

}  // namespace aether::cpu
