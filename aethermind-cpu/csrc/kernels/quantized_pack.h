// Packing of quantised weights, panel by panel: a block at a time is transposed into lanes, quantised where the source
// holds values, and written as steps. Included by each quantized_pack_<isa>.cc.
#pragma once

#include <cstring>

#include "kernels/quantize_super_block.h"
#include "simd/bfloat16.h"
#include "simd/float16.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kMaxStackBlock = 1024;  // values per row of a block that is transposed on the stack

inline float widen_value(float x) { return x; }
inline float widen_value(BFloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }
inline float widen_value(Float16 x) {
  if ((x.bits & 0x7c00u) == 0x7c00u) return INFINITY;  // or NaN: both are rejected
  return from_half(x.bits);
}

// Transposes values [k, k + length) of up to sixteen rows into lanes; rows past `num_rows` are zero. Returns false
// where a value is not finite or exceeds the largest float16.
template <class T>
inline bool transpose(const T* rows, int64_t num_rows, int64_t cols, int64_t k, int64_t length, LaneFloats* out) {
  if (num_rows < kPanelColumns) std::memset(out, 0, static_cast<size_t>(length) * sizeof *out);
  bool is_finite = true;
  for (int64_t c = 0; c < num_rows; ++c) {
    const T* row = rows + c * cols + k;
    int bad = 0;
    for (int64_t i = 0; i < length; ++i) {
      const float value = widen_value(row[i]);
      bad |= !(__builtin_fabsf(value) <= 65504.0f);
      out[i].v[c] = value;
    }
    is_finite = is_finite && !bad;
  }
  return is_finite;
}

inline bool transpose(const QuantizedSource& source, int64_t row, int64_t num_rows, int64_t cols, int64_t k,
                      int64_t length, LaneFloats* out) {
  const int64_t first = row * cols;
  switch (source.dtype) {
    case AM_BFLOAT16:
      return transpose(static_cast<const BFloat16*>(source.values) + first, num_rows, cols, k, length, out);
    case AM_FLOAT16:
      return transpose(static_cast<const Float16*>(source.values) + first, num_rows, cols, k, length, out);
    default:
      return transpose(static_cast<const float*>(source.values) + first, num_rows, cols, k, length, out);
  }
}

// Writes a k-group of codes [k][column] as steps.
inline void put_group(const uint8_t (*codes)[kPanelColumns], int64_t bits, char* steps) {
  const int64_t codes_per_byte = 8 / bits;
  for (int64_t step = 0; step < bits; ++step) {
    uint32_t words[kPanelColumns] = {};
    for (int64_t field = 0; field < codes_per_byte; ++field) {
      for (int64_t byte = 0; byte < 4; ++byte) {
        const uint8_t* from = codes[step * 4 * codes_per_byte + field * 4 + byte];
        const int64_t shift = 8 * byte + bits * field;
        AETHER_FOR_LANES words[c] |= static_cast<uint32_t>(from[c]) << shift;
      }
    }
    std::memcpy(steps + step * kStepBytes, words, sizeof words);
  }
}

// Writes a super-block's scales and sub-scales.
inline void put_super_block_scales(const uint16_t (*super_scales)[kPanelColumns],
                                   const uint8_t (*sub_scales)[kPanelColumns], char* destination) {
  constexpr int last = 3 * kSubScalesPerWord, shift = kSubScalesPerWord * kSubScaleBits;
  uint32_t words[3][kPanelColumns];
  for (int w = 0; w < 3; ++w) {
    AETHER_FOR_LANES words[w][c] = (static_cast<uint32_t>(sub_scales[last][c]) >> 2 * w & 3u) << shift;
    for (int i = 0; i < kSubScalesPerWord; ++i) {
      const uint8_t* from = sub_scales[w * kSubScalesPerWord + i];
      AETHER_FOR_LANES words[w][c] |= static_cast<uint32_t>(from[c]) << i * kSubScaleBits;
    }
  }
  std::memcpy(destination, super_scales, 2 * sizeof *super_scales);
  std::memcpy(destination + 2 * sizeof *super_scales, words, sizeof words);
}

// Addresses of the parts of a panel's block; null where the format does not have the part. A super-block's scales all
// begin at `scales`.
struct BlockParts {
  uint16_t* scales;
  uint8_t* exponents;
  uint8_t* zeros;
  uint16_t* offsets;
  char* steps;

  BlockParts(const QuantizedLayout& layout, char* block)
      : scales(reinterpret_cast<uint16_t*>(block)),
        exponents(layout.is_mxfp4 ? reinterpret_cast<uint8_t*>(block) : nullptr),
        zeros(layout.has_zero_point ? reinterpret_cast<uint8_t*>(block + kScaleBytes) : nullptr),
        offsets(layout.has_offset ? reinterpret_cast<uint16_t*>(block + kScaleBytes) : nullptr),
        steps(block + (layout.has_super_blocks ? kSuperBlockScaleBytes
                       : exponents             ? kExponentBytes
                       : zeros                 ? kScaleBytes + kZeroBytes
                       : offsets               ? kScaleBytes + kOffsetBytes
                                               : kScaleBytes)) {}
};

// Writes the codes of `length` values that share a scale.
inline void put_codes(const QuantizedLayout& layout, const QuantizedBlock& block, const LaneFloats* x, int64_t length,
                      char* steps) {
  const LaneFloats inverse = inverses(block.scales_f32);
  for (int64_t begin = 0; begin < length; begin += kGroupK) {
    uint8_t codes[kGroupK][kPanelColumns] = {};
    const int64_t end = begin + kGroupK < length ? begin + kGroupK : length;
    for (int64_t i = begin; i < end; ++i) codes_of(layout, block, inverse, x[i], codes[i - begin]);
    put_group(codes, layout.bits, steps + begin / kGroupK * layout.bits * kStepBytes);
  }
}

// Quantises and packs one block of a panel. `x` is scratch for `length` values of every row.
inline bool pack_values(const QuantizedLayout& layout, const QuantizedSource& source, int64_t row, int64_t num_rows,
                        int64_t cols, int64_t k, int64_t length, LaneFloats* x, const BlockParts& parts) {
  const bool is_finite = transpose(source, row, num_rows, cols, k, length, x);
  if (!is_finite) return false;
  if (layout.has_super_blocks) {
    const SuperBlock super_block = quantize_super_block(x, length);
    put_super_block_scales(super_block.super_scales, super_block.sub_scales, reinterpret_cast<char*>(parts.scales));
    for (int64_t begin = 0, group = 0; begin < length; begin += kGroupK, ++group) {
      const int64_t count = begin + kGroupK < length ? kGroupK : length - begin;
      put_codes(layout, super_block.groups[group], x + begin, count, parts.steps + group * layout.bits * kStepBytes);
    }
    return true;
  }
  QuantizedBlock block = quantize_block(layout, x, length);
  for (int64_t c = num_rows; c < kPanelColumns; ++c) block.scales[c] = block.offsets[c] = 0;  // zeros may be negative
  std::memcpy(parts.scales, block.scales, sizeof block.scales);
  if (parts.zeros) AETHER_FOR_LANES parts.zeros[c] = static_cast<uint8_t>(block.zeros.v[c]);
  if (parts.offsets) std::memcpy(parts.offsets, block.offsets, sizeof block.offsets);
  put_codes(layout, block, x, length, parts.steps);
  return true;
}

// Packs the scales of a super-block, and its sub-scales given as bytes.
inline void pack_super_block_scales(const PanelShape& shape, const QuantizedSource& source, int64_t row,
                                    int64_t num_rows, int64_t block, char* destination) {
  uint16_t super_scales[2][kPanelColumns] = {};
  uint8_t sub_scales[2 * kSuperBlockGroups][kPanelColumns] = {};
  const int64_t first = block * kSuperBlockGroups;
  const int64_t count = shape.num_groups - first < kSuperBlockGroups ? shape.num_groups - first : kSuperBlockGroups;
  for (int64_t c = 0; c < num_rows; ++c) {
    for (int i = 0; i < 2; ++i) {
      super_scales[i][c] = source.super_scales[((row + c) * shape.num_blocks + block) * 2 + i];
      const auto* given = static_cast<const uint8_t*>(i ? source.offsets : source.scales);
      for (int64_t group = 0; group < count; ++group) {
        const uint8_t sub_scale = given[(row + c) * shape.num_groups + first + group];
        sub_scales[2 * group + i][c] = static_cast<uint8_t>(sub_scale & ((1u << kSubScaleBits) - 1u));
      }
    }
  }
  put_super_block_scales(super_scales, sub_scales, destination);
}

// Packs one block of a panel from its codes, scales and zero points.
inline void pack_codes(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                       int64_t row, int64_t num_rows, int64_t cols, int64_t k, int64_t length, int64_t block,
                       const BlockParts& parts) {
  if (layout.has_super_blocks)
    pack_super_block_scales(shape, source, row, num_rows, block, reinterpret_cast<char*>(parts.scales));
  for (int64_t c = 0; c < kPanelColumns && !layout.has_super_blocks; ++c) {
    const int64_t from = (row + c) * shape.num_blocks + block;
    if (parts.exponents) {
      parts.exponents[c] = c < num_rows ? static_cast<const uint8_t*>(source.scales)[from] : 0;
      continue;
    }
    parts.scales[c] = c < num_rows ? static_cast<const uint16_t*>(source.scales)[from] : 0;
    if (parts.zeros) parts.zeros[c] = c < num_rows ? source.zeros[from] : 0;
    if (parts.offsets) parts.offsets[c] = c < num_rows ? static_cast<const uint16_t*>(source.offsets)[from] : 0;
  }
  const int offset = is_unsigned(layout) || layout.is_mxfp4 ? 0 : 1 << (layout.bits - 1);
  for (int64_t begin = 0; begin < length; begin += kGroupK) {
    uint8_t codes[kGroupK][kPanelColumns] = {};
    const int64_t count = begin + kGroupK < length ? kGroupK : length - begin;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const uint8_t* from = source.codes + (row + c) * cols + k + begin;
      for (int64_t i = 0; i < count; ++i) {
        const int code = c < num_rows ? from[i] : 0;
        // 1-bit codes are −1 and 1: the inverted sign bit.
        codes[i][c] = static_cast<uint8_t>(layout.bits == 1 ? (code >> 7) ^ 1 : code + offset);
      }
    }
    put_group(codes, layout.bits, parts.steps + begin / kGroupK * layout.bits * kStepBytes);
  }
}

inline bool pack_panels(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                        int64_t row_begin, int64_t num_rows, int64_t cols, char* panels) {
  const int64_t length_of_block = shape.groups_per_block * kGroupK;
  LaneFloats on_stack[kMaxStackBlock];
  LaneFloats* x = length_of_block > kMaxStackBlock ? new LaneFloats[static_cast<size_t>(length_of_block)] : on_stack;
  bool is_finite = true;
  for (int64_t row = 0; row < num_rows && is_finite; row += kPanelColumns, panels += shape.panel_bytes) {
    const int64_t count = num_rows - row < kPanelColumns ? num_rows - row : kPanelColumns;
    for (int64_t block = 0; block < shape.num_blocks && is_finite; ++block) {
      const int64_t k = block * length_of_block;
      const int64_t length = cols - k < length_of_block ? cols - k : length_of_block;
      const BlockParts parts(layout, panels + block * shape.block_bytes);
      if (source.values) {
        is_finite = pack_values(layout, source, row_begin + row, count, cols, k, length, x, parts);
      } else {
        pack_codes(layout, shape, source, row_begin + row, count, cols, k, length, block, parts);
      }
    }
  }
  if (x != on_stack) delete[] x;
  return is_finite;
}

}  // namespace aether::cpu::AETHER_ISA
