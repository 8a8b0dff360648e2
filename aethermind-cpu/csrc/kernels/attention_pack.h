// Packing the operands of attention's two products into panels (pack.h): keys are columns of the first, rows of values
// are the K dimension of the second.
//
// Keys and values are rows of `head_dim` elements. Quantised rows are dequantised without their scale, which the caller
// applies to scores and weights: the codes are exact in every compute type.
#pragma once

#include "kernels/gemm.h"
#include "kernels/kv_quantization.h"

namespace aether::cpu::AETHER_ISA {

// The type in which queries of type T and cached elements of type S are multiplied.
template <class T, class S>
struct ComputeType {
  using Type = T;
};
template <class T>
struct ComputeType<T, Code> {
  using Type = float;
};
template <>
struct ComputeType<BFloat16, Code> {
  using Type = BFloat16;
};

// Splits a step of sixteen pairs into the sixteen first and the sixteen second elements.
AETHER_INLINE void split_pairs(char* step) {
  uint32_t pairs[16];
  std::memcpy(pairs, step, sizeof pairs);
  uint16_t halves[32];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(pairs[i]);
  for (int i = 0; i < 16; ++i) halves[16 + i] = static_cast<uint16_t>(pairs[i] >> 16);
  std::memcpy(step, halves, sizeof halves);
}

// Packs sixteen key rows of `head_dim` elements into a panel [steps][16 keys] (pack.h).
template <class T>
AETHER_INLINE void pack_keys(const T* const (&keys)[16], int64_t head_dim, char* panel) {
  constexpr int64_t kPerWord = 4 / static_cast<int64_t>(sizeof(T));
  const int64_t num_words = ceil_div(head_dim, kPerWord);
  const size_t row_bytes = static_cast<size_t>(head_dim) * sizeof(T);
  for (int64_t word = 0; word < num_words; word += 16) {
    const size_t offset = static_cast<size_t>(word) * 4;
    const size_t bytes = row_bytes - offset < 64 ? row_bytes - offset : 64;
    const char* rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = reinterpret_cast<const char*>(keys[i]) + offset;
    const int64_t count = smaller(num_words - word, 16);
    transpose_words(rows, bytes, count, panel + word * kStepBytes);
    if constexpr (__is_same(T, Float16)) {
      for (int64_t i = 0; i < count; ++i) split_pairs(panel + (word + i) * kStepBytes);
    }
  }
}

// Packs sixteen columns of the value rows of one step (one row, or a pair) into the step.
AETHER_INLINE void pack_value_step(const float* const (&rows)[1], char* step) {
  std::memcpy(step, rows[0], kStepBytes);
}
AETHER_INLINE void pack_value_step(const Float16* const (&rows)[2], char* step) {
  std::memcpy(step, rows[0], kStepBytes / 2);
  std::memcpy(step + kStepBytes / 2, rows[1], kStepBytes / 2);
}
// 128 bits at a time, which every instruction set can interleave; the compiler expands wider shuffles element by
// element where there is no instruction.
AETHER_INLINE void pack_value_step(const BFloat16* const (&rows)[2], char* step) {
  using Words = uint16_t __attribute__((vector_size(16)));
  for (int i = 0; i < 16; i += 8) {
    Words a, b;
    std::memcpy(&a, rows[0] + i, sizeof a);
    std::memcpy(&b, rows[1] + i, sizeof b);
    const Words low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const Words high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    std::memcpy(step + i * 4, &low, sizeof low);
    std::memcpy(step + i * 4 + sizeof low, &high, sizeof high);
  }
}
// Packs 32 columns into the same step of two panels.
template <class T, int R>
AETHER_INLINE void pack_value_steps(const T* const (&rows)[R], char* step, int64_t panel_bytes) {
  const T* second[R];
  for (int r = 0; r < R; ++r) second[r] = rows[r] + 16;
  pack_value_step(rows, step);
  pack_value_step(second, step + panel_bytes);
}
#ifdef AETHER_HAS_WIDE_SHUFFLE
AETHER_INLINE void pack_value_steps(const BFloat16* const (&rows)[2], char* step, int64_t panel_bytes) {
  using Words = uint16_t __attribute__((vector_size(64)));
  Words a, b;
  std::memcpy(&a, rows[0], sizeof a);
  std::memcpy(&b, rows[1], sizeof b);
  const Words low = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41,
                                            10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47);
  const Words high = __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24,
                                             56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  std::memcpy(step, &low, sizeof low);
  std::memcpy(step + panel_bytes, &high, sizeof high);
}
#endif

// Packs sixteen value rows into steps of the panels [ceil(head_dim / 16)][steps][16 columns], `panel_bytes` apart.
template <class T>
AETHER_INLINE void pack_values(const T* const (&values)[16], int64_t head_dim, char* panels, int64_t panel_bytes) {
  constexpr int kRows = 4 / static_cast<int>(sizeof(T));
  for (int j = 0; j < 16; j += kRows, panels += kStepBytes) {
    char* step = panels;
    int64_t i = 0;
    const T* rows[kRows];
    for (; i + 32 <= head_dim; i += 32, step += 2 * panel_bytes) {
      for (int r = 0; r < kRows; ++r) rows[r] = values[j + r] + i;
      pack_value_steps(rows, step, panel_bytes);
    }
    for (; i < head_dim; i += 16, step += panel_bytes) {
      T tails[kRows][16] = {};
      for (int r = 0; r < kRows; ++r) {
        rows[r] = tails[r];
        std::memcpy(tails[r], values[j + r] + i, static_cast<size_t>(smaller(head_dim - i, 16)) * sizeof(T));
      }
      pack_value_step(rows, step);
    }
  }
}

// Sixteen of the rows at `base` in the compute type C: in place, or converted into `staging`, `stride` elements apart.
template <class S, class C>
AETHER_INLINE void load_as(const S* base, int32_t dtype, const int64_t* row_numbers, int64_t head_dim, C* staging,
                           int64_t stride, const C* (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    const S* stored = base + row_numbers[i] * head_dim;
    if constexpr (__is_same(S, C)) {
      rows[i] = stored;
    } else {
      dequantize_row(dtype, stored, head_dim, staging + i * stride);
      rows[i] = staging + i * stride;
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
