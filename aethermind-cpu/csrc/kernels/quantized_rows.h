// Rows of a quantised weight as the values that they stand for, out of the packed weight (quantized_layout.h).
#pragma once

#include <cstring>

#include "kernels/pack.h"
#include "kernels/quantized_layout.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Of the sixteen halves of a panel's block, that of one column.
AETHER_INLINE float half_of_column(const char* halves, int64_t column) {
  float values[kPanelColumns];
  store(values, load(reinterpret_cast<const Float16*>(halves)));
  return values[column];
}

// Of a super-block's words, a field of one column.
AETHER_INLINE float field_of_column(const char* words, int64_t field, int64_t column) {
  uint32_t word[3];
  for (int i = 0; i < 3; ++i) std::memcpy(word + i, words + i * kStepBytes + column * 4, sizeof *word);
  constexpr int last = kFieldsPerWord * kFieldBits;
  if (field == 3 * kFieldsPerWord) {
    return static_cast<float>(word[0] >> last | word[1] >> last << 2 | word[2] >> last << 4);
  }
  const uint32_t shifted = word[field / kFieldsPerWord] >> (field % kFieldsPerWord * kFieldBits);
  return static_cast<float>(shifted & ((1u << kFieldBits) - 1u));
}

// A code stands for scale · (code − zero) + offset. The product is exact in float32, so there is one rounding at most.
struct ColumnBlock {
  float scale, zero, offset;
  const char* steps;

  // Of `unit` within the block, which says something where a scale is a unit's.
  ColumnBlock(const QuantizedLayout& layout, const char* block, int64_t unit, int64_t column) {
    scale = half_of_column(block, column);
    zero = offset = 0.0f;
    const char* side = block + kScaleBytes;
    if (layout.has_levels) {
      const char* words = side + kOffsetBytes;
      scale *= field_of_column(words, 2 * unit, column);
      offset = half_of_column(side, column) * field_of_column(words, 2 * unit + 1, column);
      side = block + kLevelBytes;
    } else if (layout.has_zero_point) {
      zero = static_cast<float>(static_cast<uint8_t>(side[column]));
      side += kZeroBytes;
    } else if (layout.has_offset) {
      offset = half_of_column(side, column);
      side += kOffsetBytes;
    } else if (layout.bits == 1) {  // codes 0 and 1 are signs
      zero = 0.5f;
      scale *= 2.0f;
    } else {
      zero = static_cast<float>(1 << (layout.bits - 1));
    }
    steps = side + column * static_cast<int64_t>(sizeof(uint32_t));
  }
};

AETHER_INLINE void widen_unit(const ColumnBlock& block, int64_t unit, int64_t bits, float (&values)[kUnitK]) {
  const int64_t fields = 8 / bits;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t step = 0; step < bits; ++step) {
    uint32_t word;
    std::memcpy(&word, block.steps + (unit * bits + step) * kStepBytes, sizeof word);
    for (int64_t field = 0; field < fields; ++field) {
      for (int64_t byte = 0; byte < 4; ++byte) {
        const auto code = static_cast<float>((word >> (8 * byte + bits * field)) & mask);
        values[4 * (fields * step + field) + byte] = block.scale * (code - block.zero) + block.offset;
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
      const int64_t first = b * shape.units_per_block;
      const int64_t units = smaller(shape.units_per_block, shape.num_units - first);
      for (int64_t unit = 0; unit < units; ++unit) {
        float values[kUnitK];
        const ColumnBlock block(layout, panel + b * shape.block_bytes, unit, token[r] % kPanelColumns);
        widen_unit(block, unit, layout.bits, values);
        for (int64_t half = 0; half < kUnitK; half += kLanes) {
          const int64_t k = (first + unit) * kUnitK + half;
          if (k < size) store(row + k, load(values + half), smaller(kLanes, size - k));
        }
      }
    }
  }
}

}  // namespace aether::cpu::AETHER_ISA
