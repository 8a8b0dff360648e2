// Packing of quantised weights, panel by panel: transposed into lanes a block at a time, quantised where the source is
// not, and written as steps. Included once by each quantized_pack_<isa>.cc.
#pragma once

#include <cstring>

#include "kernels/quantize_levels.h"
#include "simd/bfloat16.h"
#include "simd/float16.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kLongestBlock = 1024;  // of those that are transposed on the stack

inline float widen_value(float x) { return x; }
inline float widen_value(BFloat16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16); }
inline float widen_value(Float16 x) {
  if ((x.bits & 0x7c00u) == 0x7c00u) return INFINITY;  // or NaN: refused alike
  return from_half(x.bits);
}

// Values [k, k + length) of up to sixteen rows as lanes; rows past `num_rows` are zero. False where no format takes
// one.
template <class T>
inline bool transpose(const T* rows, int64_t num_rows, int64_t cols, int64_t k, int64_t length, Floats* out) {
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
                      int64_t length, Floats* out) {
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

// Up to a unit of codes, [k][column], as steps.
inline void put_unit(const uint8_t (*codes)[kPanelColumns], int64_t bits, char* steps) {
  const int64_t fields = 8 / bits;
  for (int64_t step = 0; step < bits; ++step) {
    uint32_t words[kPanelColumns] = {};
    for (int64_t field = 0; field < fields; ++field) {
      for (int64_t byte = 0; byte < 4; ++byte) {
        const uint8_t* from = codes[step * 4 * fields + field * 4 + byte];
        const int64_t shift = 8 * byte + bits * field;
        AETHER_FOR_LANES words[c] |= static_cast<uint32_t>(from[c]) << shift;
      }
    }
    std::memcpy(steps + step * kStepBytes, words, sizeof words);
  }
}

// A super-block's units and fields, before its codes.
inline void put_levels(const uint16_t (*units)[kPanelColumns], const uint8_t (*fields)[kPanelColumns], char* side) {
  constexpr int last = 3 * kFieldsPerWord, shift = kFieldsPerWord * kFieldBits;
  uint32_t words[3][kPanelColumns];
  for (int w = 0; w < 3; ++w) {
    AETHER_FOR_LANES words[w][c] = (static_cast<uint32_t>(fields[last][c]) >> 2 * w & 3u) << shift;
    for (int i = 0; i < kFieldsPerWord; ++i) {
      const uint8_t* from = fields[w * kFieldsPerWord + i];
      AETHER_FOR_LANES words[w][c] |= static_cast<uint32_t>(from[c]) << i * kFieldBits;
    }
  }
  std::memcpy(side, units, 2 * sizeof *units);
  std::memcpy(side + 2 * sizeof *units, words, sizeof words);
}

// Where the parts of a panel's block lie; what its format does not have is null. Of two levels all is at `scales`.
struct Sides {
  uint16_t* scales;
  uint8_t* zeros;
  uint16_t* offsets;
  char* steps;

  Sides(const QuantizedLayout& layout, char* block)
      : scales(reinterpret_cast<uint16_t*>(block)),
        zeros(layout.has_zero_point ? reinterpret_cast<uint8_t*>(block + kScaleBytes) : nullptr),
        offsets(layout.has_offset ? reinterpret_cast<uint16_t*>(block + kScaleBytes) : nullptr),
        steps(block + (layout.has_levels ? kLevelBytes
                       : zeros           ? kScaleBytes + kZeroBytes
                       : offsets         ? kScaleBytes + kOffsetBytes
                                         : kScaleBytes)) {}
};

// Codes of `length` values that share a scale.
inline void put_codes(const QuantizedLayout& layout, const QuantizedBlock& block, const Floats* x, int64_t length,
                      char* steps) {
  const Floats inverse = inverses(block.wide);
  for (int64_t begin = 0; begin < length; begin += kUnitK) {
    uint8_t codes[kUnitK][kPanelColumns] = {};
    const int64_t end = begin + kUnitK < length ? begin + kUnitK : length;
    for (int64_t i = begin; i < end; ++i) codes_of(layout, block, inverse, x[i], codes[i - begin]);
    put_unit(codes, layout.bits, steps + begin / kUnitK * layout.bits * kStepBytes);
  }
}

// One block of a panel from values. `x` has room for it.
inline bool pack_values(const QuantizedLayout& layout, const QuantizedSource& source, int64_t row, int64_t num_rows,
                        int64_t cols, int64_t k, int64_t length, Floats* x, const Sides& sides) {
  const bool is_finite = transpose(source, row, num_rows, cols, k, length, x);
  if (!is_finite) return false;
  if (layout.has_levels) {
    const SuperBlock super_block = quantize_in_two_levels(x, length);
    put_levels(super_block.units, super_block.fields, reinterpret_cast<char*>(sides.scales));
    for (int64_t begin = 0, unit = 0; begin < length; begin += kUnitK, ++unit) {
      const int64_t count = begin + kUnitK < length ? kUnitK : length - begin;
      put_codes(layout, super_block.lines[unit], x + begin, count, sides.steps + unit * layout.bits * kStepBytes);
    }
    return true;
  }
  QuantizedBlock block = quantize_block(layout, x, length);
  for (int64_t c = num_rows; c < kPanelColumns; ++c) block.scales[c] = block.offsets[c] = 0;  // zeros may be negative
  std::memcpy(sides.scales, block.scales, sizeof block.scales);
  if (sides.zeros) AETHER_FOR_LANES sides.zeros[c] = static_cast<uint8_t>(block.zeros.v[c]);
  if (sides.offsets) std::memcpy(sides.offsets, block.offsets, sizeof block.offsets);
  put_codes(layout, block, x, length, sides.steps);
  return true;
}

// The units of a super-block, and its scales and offsets that count them, from bytes.
inline void pack_levels(const PanelShape& shape, const QuantizedSource& source, int64_t row, int64_t num_rows,
                        int64_t block, char* side) {
  uint16_t units[2][kPanelColumns] = {};
  uint8_t fields[2 * kSuperUnits][kPanelColumns] = {};
  const int64_t first = block * kSuperUnits;
  const int64_t count = shape.num_units - first < kSuperUnits ? shape.num_units - first : kSuperUnits;
  for (int64_t c = 0; c < num_rows; ++c) {
    for (int i = 0; i < 2; ++i) {
      units[i][c] = source.units[((row + c) * shape.num_blocks + block) * 2 + i];
      const auto* counts = static_cast<const uint8_t*>(i ? source.offsets : source.scales);
      for (int64_t unit = 0; unit < count; ++unit) {
        const uint8_t counted = counts[(row + c) * shape.num_units + first + unit];
        fields[2 * unit + i][c] = static_cast<uint8_t>(counted & ((1u << kFieldBits) - 1u));
      }
    }
  }
  put_levels(units, fields, side);
}

// One block of a panel from its codes, scales and zero points.
inline void pack_codes(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                       int64_t row, int64_t num_rows, int64_t cols, int64_t k, int64_t length, int64_t block,
                       const Sides& sides) {
  if (layout.has_levels) pack_levels(shape, source, row, num_rows, block, reinterpret_cast<char*>(sides.scales));
  for (int64_t c = 0; c < kPanelColumns && !layout.has_levels; ++c) {
    const int64_t from = (row + c) * shape.num_blocks + block;
    sides.scales[c] = c < num_rows ? static_cast<const uint16_t*>(source.scales)[from] : 0;
    if (sides.zeros) sides.zeros[c] = c < num_rows ? source.zeros[from] : 0;
    if (sides.offsets) sides.offsets[c] = c < num_rows ? static_cast<const uint16_t*>(source.offsets)[from] : 0;
  }
  const int offset = is_unsigned(layout) ? 0 : 1 << (layout.bits - 1);
  for (int64_t begin = 0; begin < length; begin += kUnitK) {
    uint8_t codes[kUnitK][kPanelColumns] = {};
    const int64_t count = begin + kUnitK < length ? kUnitK : length - begin;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const uint8_t* from = source.codes + (row + c) * cols + k + begin;
      for (int64_t i = 0; i < count; ++i) {
        const int code = c < num_rows ? from[i] : 0;
        // Of one bit, −1 and 1: the sign's opposite.
        codes[i][c] = static_cast<uint8_t>(layout.bits == 1 ? (code >> 7) ^ 1 : code + offset);
      }
    }
    put_unit(codes, layout.bits, sides.steps + begin / kUnitK * layout.bits * kStepBytes);
  }
}

inline bool pack_panels(const QuantizedLayout& layout, const PanelShape& shape, const QuantizedSource& source,
                        int64_t row_begin, int64_t num_rows, int64_t cols, char* panels) {
  const int64_t length_of_block = shape.units_per_block * kUnitK;
  Floats on_stack[kLongestBlock];
  Floats* x = length_of_block > kLongestBlock ? new Floats[static_cast<size_t>(length_of_block)] : on_stack;
  bool is_finite = true;
  for (int64_t row = 0; row < num_rows && is_finite; row += kPanelColumns, panels += shape.panel_bytes) {
    const int64_t count = num_rows - row < kPanelColumns ? num_rows - row : kPanelColumns;
    for (int64_t block = 0; block < shape.num_blocks && is_finite; ++block) {
      const int64_t k = block * length_of_block;
      const int64_t length = cols - k < length_of_block ? cols - k : length_of_block;
      const Sides sides(layout, panels + block * shape.block_bytes);
      if (source.values) {
        is_finite = pack_values(layout, source, row_begin + row, count, cols, k, length, x, sides);
      } else {
        pack_codes(layout, shape, source, row_begin + row, count, cols, k, length, block, sides);
      }
    }
  }
  if (x != on_stack) delete[] x;
  return is_finite;
}

}  // namespace aether::cpu::AETHER_ISA
