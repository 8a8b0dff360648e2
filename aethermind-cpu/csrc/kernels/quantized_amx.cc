// Matrix operators over quantised weights and bfloat16 activations: many rows on the tile unit, few rows by products
// of bytes. A row's result depends on which of them its call takes, so these kernels are not batch invariant.
#if defined(__x86_64__)
#include "isa/amx.h"
#include "kernels/entries.h"
#include "kernels/linear.h"
#include "kernels/qkv_rope_cache_write.h"
#include "kernels/quantized_tiles.h"

namespace aether::cpu {
namespace amx {

// Rows up to which products of bytes are taken: dequantising a weight for so few takes about as long as multiplying.
inline constexpr int64_t kMaxByteRows = 32;

inline const am_kernel& byte_kernel(const char* operator_name) {
  for (const KernelEntry& entry : kAvx512VnniQuantized) {
    if (entry.dtype == AM_BFLOAT16 && std::strcmp(entry.operator_name, operator_name) == 0) return *entry.kernel;
  }
  __builtin_unreachable();
}

#define AETHER_TILE_KERNEL(op, inputs, outputs, attrs, many_rows, many_scratch)                                    \
  const am_kernel& byte_##op() {                                                                                   \
    static const am_kernel& kernel = byte_kernel(#op);                                                             \
    return kernel;                                                                                                 \
  }                                                                                                                \
  void run_##op(const am_tensor* in, const am_tensor* out, const am_attr* attributes, const am_team* team) {       \
    if (num_rows(in[0]) <= kMaxByteRows) return byte_##op().run(in, out, attributes, team);                        \
    many_rows<BFloat16, DequantizedWeight>(in, out, attributes, team);                                             \
  }                                                                                                                \
  size_t scratch_##op(const am_tensor* in, const am_tensor* out, const am_attr* attributes, int32_t num_workers) { \
    const size_t few = byte_##op().scratch_bytes(in, out, attributes, num_workers);                                \
    const size_t many = many_scratch<BFloat16, DequantizedWeight>(in, out, attributes, num_workers);               \
    return few > many ? few : many;                                                                                \
  }                                                                                                                \
  constexpr am_kernel kTile_##op = make_kernel(#op "/amx", inputs, outputs, attrs, run_##op, scratch_##op)

namespace {

AETHER_TILE_KERNEL(gate_up_gelu, 3, 1, 1, gate_up_gelu, gate_up_scratch);
AETHER_TILE_KERNEL(gate_up_silu, 3, 1, 0, gate_up_silu, gate_up_scratch);
AETHER_TILE_KERNEL(linear, 3, 1, 0, linear, linear_scratch);
AETHER_TILE_KERNEL(lm_head, 3, 1, 0, lm_head, linear_scratch);
AETHER_TILE_KERNEL(qkv_rope_cache_write, 13, 3, 4, qkv_rope_cache_write, qkv_rope_cache_write_scratch);
AETHER_TILE_KERNEL(qkv_rope_cache_write_quantized, 15, 5, 4, qkv_rope_cache_write_quantized,
                   qkv_rope_cache_write_scratch);

constexpr KernelEntry tile_entry(const char* name, const am_kernel& kernel, int num_weights) {
  KernelEntry result = {name, AETHER_VARIANT, AM_BFLOAT16, kPriority, kIsSupported, &kernel, {}, num_weights};
  for (int i = 0; i < num_weights; ++i) result.packs[i] = {1 + i, nullptr};
  result.multiplies_bytes = true;  // of few rows, whose activations are rounded further than weights of many rows are
  result.is_batch_invariant = false;
  return result;
}

constexpr KernelEntry kQuantizedTileEntries[] = {
    tile_entry("gate_up_gelu", kTile_gate_up_gelu, 2),
    tile_entry("gate_up_silu", kTile_gate_up_silu, 2),
    tile_entry("linear", kTile_linear, 1),
    tile_entry("lm_head", kTile_lm_head, 1),
    tile_entry("qkv_rope_cache_write", kTile_qkv_rope_cache_write, 3),
    tile_entry("qkv_rope_cache_write_quantized", kTile_qkv_rope_cache_write_quantized, 3),
};

}  // namespace
}  // namespace amx

const std::span<const KernelEntry> kAmxQuantized = amx::kQuantizedTileEntries;

}  // namespace aether::cpu

#endif
