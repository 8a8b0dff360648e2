// embedding over a quantised weight: rows are dequantised out of the packed weight (quantized_layout.h).
#pragma once

#include <cstring>

#include "kernels/pack.h"
#include "kernels/quantized_layout.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// One column of sixteen float16 numbers.
AETHER_INLINE float float16_of_column(const char* halves, int64_t column) {
  float values[kPanelColumns];
  store(values, load(reinterpret_cast<const Float16*>(halves)));
  return values[column];
}

// Sub-scale number `index` of one column, out of a super-block's words (quantized_layout.h).
AETHER_INLINE float sub_scale_of_column(const char* words, int64_t index, int64_t column) {
  uint32_t word[3];
  for (int i = 0; i < 3; ++i) std::memcpy(word + i, words + i * kStepBytes + column * 4, sizeof *word);
  constexpr int last = kSubScalesPerWord * kSubScaleBits;
  if (index == 3 * kSubScalesPerWord) {
    return static_cast<float>(word[0] >> last | word[1] >> last << 2 | word[2] >> last << 4);
  }
  const uint32_t shifted = word[index / kSubScalesPerWord] >> (index % kSubScalesPerWord * kSubScaleBits);
  return static_cast<float>(shifted & ((1u << kSubScaleBits) - 1u));
}

// Parameters of one column in one k-group: value = scale · (code − zero) + offset. The product is exact in float32, so
// there is one rounding at most.
struct ColumnBlock {
  float scale, zero, offset;
  const char* steps;

  // `group` is the k-group's index in the block; it selects the sub-scales of a super-block.
  ColumnBlock(const QuantizedLayout& layout, const char* block, int64_t group, int64_t column) {
    zero = offset = 0.0f;
    if (layout.is_mxfp4) {
      float powers[kPanelColumns];
      store(powers, load_powers_of_two(reinterpret_cast<const uint8_t*>(block)));
      scale = 0.5f * powers[column];
      steps = block + kExponentBytes + column * static_cast<int64_t>(sizeof(uint32_t));
      return;
    }
    scale = float16_of_column(block, column);
    const char* parts = block + kScaleBytes;
    if (layout.has_super_blocks) {
      const char* words = parts + kOffsetBytes;
      scale *= sub_scale_of_column(words, 2 * group, column);
      offset = float16_of_column(parts, column) * sub_scale_of_column(words, 2 * group + 1, column);
      parts = block + kSuperBlockScaleBytes;
    } else if (layout.has_zero_point) {
      zero = static_cast<float>(static_cast<uint8_t>(parts[column]));
      parts += kZeroBytes;
    } else if (layout.has_offset) {
      offset = float16_of_column(parts, column);
      parts += kOffsetBytes;
    } else if (layout.bits == 1) {  // codes 0 and 1 are the signs −1 and 1
      zero = 0.5f;
      scale *= 2.0f;
    } else {
      zero = static_cast<float>(1 << (layout.bits - 1));
    }
    steps = parts + column * static_cast<int64_t>(sizeof(uint32_t));
  }
};

AETHER_INLINE void dequantize_group(const QuantizedLayout& layout, const ColumnBlock& block, int64_t group,
                                    float (&values)[kGroupK]) {
  const int64_t bits = layout.bits;
  const int64_t codes_per_byte = 8 / bits;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t step = 0; step < bits; ++step) {
    uint32_t word;
    std::memcpy(&word, block.steps + (group * bits + step) * kStepBytes, sizeof word);
    for (int64_t index = 0; index < codes_per_byte; ++index) {
      for (int64_t byte = 0; byte < 4; ++byte) {
        const uint32_t field = (word >> (8 * byte + bits * index)) & mask;
        const auto code = static_cast<float>(layout.is_mxfp4 ? kDoubledElements[field] : static_cast<int>(field));
        values[4 * (codes_per_byte * step + index) + byte] = block.scale * (code - block.zero) + block.offset;
      }
    }
  }
}

template <class T>
void quantized_embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t size = in[1].shape[1];
  const char* packed = data<const char>(in[1]);
  QuantizedLayout layout;
  std::memcpy(&layout, packed, sizeof layout);
  const PanelShape shape = panel_shape(layout, size);
  const int32_t* token = data<const int32_t>(in[0]);
  const Range rows = share(team, in[0].shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const char* panel = packed + kHeaderBytes + token[r] / kPanelColumns * shape.panel_bytes;
    T* row = data<T>(out[0]) + r * size;
    for (int64_t b = 0; b < shape.num_blocks; ++b) {
      const int64_t first = b * shape.groups_per_block;
      const int64_t num_block_groups = smaller(shape.groups_per_block, shape.num_groups - first);
      for (int64_t group = 0; group < num_block_groups; ++group) {
        float values[kGroupK];
        const ColumnBlock block(layout, panel + b * shape.block_bytes, group, token[r] % kPanelColumns);
        dequantize_group(layout, block, group, values);
        for (int64_t lanes = 0; lanes < kGroupK; lanes += kLanes) {
          const int64_t k = (first + group) * kGroupK + lanes;
          if (k < size) store(row + k, load(values + lanes), smaller(kLanes, size - k));
        }
      }
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
