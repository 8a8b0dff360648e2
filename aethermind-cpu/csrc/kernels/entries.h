// Entries of an operator in the table of kernels, one for each dtype.
#pragma once

#include "kernels/isa_tables.h"
#include "kernels/pack.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

#define AETHER_TEXT_OF(x) #x
#define AETHER_TEXT(x) AETHER_TEXT_OF(x)
#define AETHER_VARIANT AETHER_TEXT(AETHER_ISA)

template <class T>
inline constexpr am_dtype kTypeOf = AM_FLOAT32;
template <>
inline constexpr am_dtype kTypeOf<BFloat16> = AM_BFLOAT16;
template <>
inline constexpr am_dtype kTypeOf<Float16> = AM_FLOAT16;

template <class T>
inline constexpr const PackEntry* kPanels = &kPanelsFloat32;
template <>
inline constexpr const PackEntry* kPanels<BFloat16> = &kPanelsBFloat16;
template <>
inline constexpr const PackEntry* kPanels<Float16> = &kPanelsFloat16;

// The am_kernel of an operator whose dtype F is T (float32 for operators without F).
#define AETHER_KERNEL(op, inputs, outputs, attrs, ...) \
  template <class T>                                   \
  inline constexpr am_kernel k_##op = make_kernel(#op "/" AETHER_VARIANT, inputs, outputs, attrs, __VA_ARGS__)

template <class T>
constexpr KernelEntry entry(const char* name, const am_kernel& kernel) {
  return {name, AETHER_VARIANT, kTypeOf<T>, kPriority, kIsSupported, &kernel, {}, 0};
}

// An entry whose inputs first … first + count - 1 are packed weights.
template <class T>
constexpr KernelEntry packed_entry(const char* name, const am_kernel& kernel, int first, int count) {
  KernelEntry result = entry<T>(name, kernel);
  for (int i = 0; i < count; ++i) {
    result.packs[i].input = first + i;
    result.packs[i].pack = kPanels<T>;
  }
  result.num_packs = count;
  return result;
}

#define AETHER_ENTRY(op, T) entry<T>(#op, k_##op<T>)
#define AETHER_ENTRIES(op) AETHER_ENTRY(op, float), AETHER_ENTRY(op, BFloat16), AETHER_ENTRY(op, Float16)
#define AETHER_PACKED_ENTRY(op, T, first, count) packed_entry<T>(#op, k_##op<T>, first, count)
#define AETHER_PACKED_ENTRIES(op, first, count)                                                  \
  AETHER_PACKED_ENTRY(op, float, first, count), AETHER_PACKED_ENTRY(op, BFloat16, first, count), \
      AETHER_PACKED_ENTRY(op, Float16, first, count)

}  // namespace aether::cpu::AETHER_ISA
