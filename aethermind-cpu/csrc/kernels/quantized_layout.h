// How quantised weights [N, K] are laid out: a header that says which format it is, then panels of sixteen output
// columns, each one contiguous region that a kernel reads from front to back.
//
//   panel    its blocks, one after another, padded to 64 bytes; a block is `block` values along K, or all of them
//   block    [16] float16 scales, [16] uint8 zero points or float16 offsets where the format has them, codes; of scales
//            in two levels, a super-block: [16] float16 units of scales, [16] of offsets, [3][16] words, codes
//   words    of a column three: sixteen fields of 6 bits, for each unit of the super-block its scale and its offset.
//            Five fields lie in each word from its lowest bit on, and the sixteenth in the words' last two bits
//   codes    [units][bits steps][16 columns][4 bytes]; a unit is 32 values along K, and a step 64 bytes
//
// A step gives every column one 32-bit word, four bytes of 8 / bits fields: field f of byte j is the code of
// k = 4 (8 / bits) step + 4 f + j within the unit. Shifting a step by `bits · f` and masking its bytes therefore leaves
// four neighbours in K of each of sixteen columns, which is what one four-way dot product of bytes takes, whatever the
// number of bits; shifting a word by 8 j more leaves one value of each column, which is what a conversion to float
// takes.
//
// Codes are unsigned: that of a format without zero points or offsets is stored plus 2^(bits−1) (of one bit: 1 for
// positive), since the dot product's other operand, the activation, is signed. Scales lie between codes so that memory
// sees a single stream, which hardware fetches ahead, though steps then straddle cache lines: with scales in front of a
// panel, one row got half the bandwidth. Columns past N have scales of zero; codes past K may be anything, their
// activations are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aethermind/kernel_abi.h"

namespace aether::cpu {

inline constexpr int64_t kUnitK = 32;
inline constexpr int64_t kHeaderBytes = 64;
inline constexpr int64_t kScaleBytes = 32;  // of a block
inline constexpr int64_t kZeroBytes = 16;
inline constexpr int64_t kOffsetBytes = 32;
inline constexpr int64_t kSuperBlock = 256;  // of scales in two levels
inline constexpr int64_t kSuperUnits = kSuperBlock / kUnitK;
inline constexpr int64_t kLevelBytes = kScaleBytes + kOffsetBytes + 3 * 64;  // before a super-block's codes
inline constexpr int kFieldBits = 6;
inline constexpr int kFieldsPerWord = 5;

// A weight format (aethermind.ops.weight_format), and what a packed weight begins with.
struct QuantizedLayout {
  int32_t bits;   // 8, 4, 2, 1
  int32_t block;  // values along K that share a scale, a multiple of kUnitK; 0: a whole row
  int32_t has_zero_point;
  int32_t has_offset = 0;  // not both
  int32_t has_levels = 0;  // scales and offsets of kUnitK values in two levels, in super-blocks
};

// What of a weight format kernels are compiled for.
struct QuantizedFormat {
  int bits;
  bool has_zero_point = false;
  bool has_offset = false;
  bool has_levels = false;     // of scales and offsets
  bool has_row_scale = false;  // a single block a row
};

struct PanelShape {  // of scales in two levels, blocks are super-blocks
  int64_t num_units, units_per_block, num_blocks;
  int64_t block_bytes, panel_bytes;
};

PanelShape panel_shape(const QuantizedLayout& layout, int64_t cols);
size_t quantized_bytes(const QuantizedLayout& layout, int64_t rows, int64_t cols);

// A weight [N, K], row-major: floating-point values that are still to be quantised, or codes (one a byte, signed
// without zero points or offsets), scales [N, blocks], and zero points or offsets: float16 numbers, or bytes that count
// `units` [N, super-blocks, 2].
struct QuantizedSource {
  const void* values;
  am_dtype dtype;  // of values
  const uint8_t* codes;
  const void* scales;
  const uint8_t* zeros;
  const void* offsets = nullptr;
  const uint16_t* units = nullptr;
};

// Packs rows [row_begin, row_begin + num_rows) of a source, which is all of the weight, into their panels of `packed`,
// which is all of the packed weight. `row_begin` is a multiple of 16; the part that begins with 0 writes the header.
// False where a value is not finite, or beyond the largest float16: no format takes it, and what was written is void.
bool pack_quantized(const QuantizedLayout& layout, const QuantizedSource& source, int64_t row_begin, int64_t num_rows,
                    int64_t cols, void* packed);

}  // namespace aether::cpu
