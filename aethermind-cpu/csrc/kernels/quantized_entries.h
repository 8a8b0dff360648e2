// The matrix operators over quantised weights of one instruction set. Included by each quantized_<isa>.cc, after its
// header of csrc/simd. One kernel takes weights in any format: the packed weight names it.
#pragma once

#include "kernels/entries.h"
#include "kernels/linear.h"
#include "kernels/mixture.h"
#include "kernels/qkv_rope_cache_write.h"
#include "kernels/quantized_weight.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
struct QuantizedKernels {
  using W = QuantizedWeight<T>;
  static constexpr const char* kVariant = AETHER_VARIANT;
  static constexpr am_kernel kGateUpGelu =
      make_kernel("gate_up_gelu/" AETHER_VARIANT, 3, 1, 1, gate_up_gelu<T, W>, gate_up_scratch<T, W>);
  static constexpr am_kernel kGateUpSilu =
      make_kernel("gate_up_silu/" AETHER_VARIANT, 3, 1, 0, gate_up_silu<T, W>, gate_up_scratch<T, W>);
  static constexpr am_kernel kLinear =
      make_kernel("linear/" AETHER_VARIANT, 3, 1, 0, linear<T, W>, linear_scratch<T, W>);
  static constexpr am_kernel kLinearPerHead =
      make_kernel("linear_per_head/" AETHER_VARIANT, 2, 1, 1, linear_per_head<T, W>, linear_per_head_scratch<W>);
  static constexpr am_kernel kLmHead =
      make_kernel("lm_head/" AETHER_VARIANT, 3, 1, 0, lm_head<T, W>, linear_scratch<T, W>);
  static constexpr am_kernel kMoeGateUpSilu =
      make_kernel("moe_gate_up_silu/" AETHER_VARIANT, 6, 1, 4, moe_gate_up_silu<T, W>, moe_scratch<W, 2>);
  static constexpr am_kernel kMoeLinear =
      make_kernel("moe_linear/" AETHER_VARIANT, 4, 1, 1, moe_linear<T, W>, moe_scratch<W, 1>);
  static constexpr am_kernel kQkvRopeCacheWrite = make_kernel(
      "qkv_rope_cache_write/" AETHER_VARIANT, 13, 3, 4, qkv_rope_cache_write<T, W>, qkv_rope_cache_write_scratch<T, W>);
  static constexpr am_kernel kQkvRopeCacheWriteQuantized =
      make_kernel("qkv_rope_cache_write_quantized/" AETHER_VARIANT, 15, 5, 4, qkv_rope_cache_write_quantized<T, W>,
                  qkv_rope_cache_write_scratch<T, W>);
};

// Inputs first … first + num_weights - 1 are the weights.
constexpr KernelEntry quantized_entry(const char* name, am_dtype dtype, const am_kernel& kernel, int first,
                                      int num_weights) {
  KernelEntry result = {name, AETHER_VARIANT, dtype, kPriority, kIsSupported, &kernel, {}, num_weights};
  for (int i = 0; i < num_weights; ++i) result.packs[i] = {first + i, nullptr};
#ifdef AETHER_HAS_INT8_DOT
  result.multiplies_bytes = true;
#endif
  return result;
}

#define AETHER_QUANTIZED_ENTRIES(T, dtype)                                                           \
  quantized_entry("gate_up_gelu", dtype, QuantizedKernels<T>::kGateUpGelu, 1, 2),                    \
      quantized_entry("gate_up_silu", dtype, QuantizedKernels<T>::kGateUpSilu, 1, 2),                \
      quantized_entry("linear", dtype, QuantizedKernels<T>::kLinear, 1, 1),                          \
      quantized_entry("linear_per_head", dtype, QuantizedKernels<T>::kLinearPerHead, 1, 1),          \
      quantized_entry("lm_head", dtype, QuantizedKernels<T>::kLmHead, 1, 1),                         \
      quantized_entry("moe_gate_up_silu", dtype, QuantizedKernels<T>::kMoeGateUpSilu, 2, 2),         \
      quantized_entry("moe_linear", dtype, QuantizedKernels<T>::kMoeLinear, 2, 1),                   \
      quantized_entry("qkv_rope_cache_write", dtype, QuantizedKernels<T>::kQkvRopeCacheWrite, 1, 3), \
      quantized_entry("qkv_rope_cache_write_quantized", dtype, QuantizedKernels<T>::kQkvRopeCacheWriteQuantized, 1, 3)

inline constexpr KernelEntry kQuantizedEntries[] = {AETHER_QUANTIZED_ENTRIES(float, AM_FLOAT32),
                                                    AETHER_QUANTIZED_ENTRIES(BFloat16, AM_BFLOAT16),
                                                    AETHER_QUANTIZED_ENTRIES(Float16, AM_FLOAT16)};

}  // namespace aether::cpu::AETHER_ISA
