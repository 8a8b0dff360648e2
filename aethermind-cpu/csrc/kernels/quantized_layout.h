// Packed layout of quantised weights [N, K]: a header that names the format, then panels of sixteen output columns,
// each one contiguous region that a kernel reads from front to back.
//
//   panel    its blocks, one after another, padded to 64 bytes; a block is `block` values along K, or the whole row
//   block    [16] float16 scales; [16] uint8 zero points or float16 offsets where the format has them; codes. A
//            super-block: [16] float16 super-block scales, [16] float16 of offsets, [3][16] words, codes. A block of
//            mxfp4: [16] biased exponents as bytes, codes
//   words    three of a column: 16 unsigned sub-scales of 6 bits, scale and offset of each k-group of the super-block.
//            Each word holds five sub-scales from its lowest bit on; the sixteenth is in the words' two highest bits
//   codes    [k-groups][bits steps][16 columns][4 bytes]; a k-group is 32 values along K, a step 64 bytes
//
// A step holds one 32-bit word for every column, four bytes of 8 / bits fields: field f of byte j is the code of
// k = 4 (8 / bits) step + 4 f + j within the k-group. Shifting a step by `bits · f` and masking its bytes leaves four
// neighbours in K of each of sixteen columns, the operand of a four-way dot product of bytes, whatever the number of
// bits; shifting a word by 8 j more leaves one value of each column, the operand of a conversion to float.
//
// Codes are unsigned, since the other operand of the dot product, the activation, is signed: formats without zero
// points or offsets store code + 2^(bits−1) (1-bit formats: 1 for positive). Codes of mxfp4 are E2M1 numbers as they
// are; a table turns them into integers, twice the elements, for which the scale is halved. Scales are interleaved with
// codes, so that a panel is a single stream for the hardware prefetcher, although steps then straddle cache lines.
// Columns past N have scales of zero (mxfp4: exponents and codes of zero); codes past K are arbitrary, their
// activations are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aethermind/kernel_abi.h"

namespace aether::cpu {

inline constexpr int64_t kGroupK = 32;  // values of a k-group
inline constexpr int64_t kHeaderBytes = 64;
inline constexpr int64_t kScaleBytes = 32;  // of a block
inline constexpr int64_t kExponentBytes = 16;
inline constexpr int64_t kZeroBytes = 16;
inline constexpr int64_t kOffsetBytes = 32;
inline constexpr int64_t kSuperBlock = 256;  // values along K
inline constexpr int64_t kSuperBlockGroups = kSuperBlock / kGroupK;
inline constexpr int64_t kSuperBlockScaleBytes = kScaleBytes + kOffsetBytes + 3 * 64;  // before a super-block's codes
inline constexpr int kSubScaleBits = 6;
inline constexpr int kSubScalesPerWord = 5;

// A weight format (aethermind.ops.weight_format), as the header of a packed weight.
struct QuantizedLayout {
  int32_t bits;   // 8, 4, 2, 1
  int32_t block;  // values along K that share a scale, a multiple of kGroupK; 0: a whole row
  int32_t has_zero_point;
  int32_t has_offset = 0;  // not both
  int32_t has_super_blocks =
      0;                 // 6-bit scales and offsets of k-groups, with float16 scales of a super-block (K-quants)
  int32_t is_mxfp4 = 0;  // 4-bit floats with exponents as scales, for blocks of a k-group (OCP Microscaling 1.0)
};

// The properties of a weight format that kernels are specialised for.
struct QuantizedFormat {
  int bits;
  bool has_zero_point = false;
  bool has_offset = false;
  bool has_super_blocks = false;
  bool has_row_scale = false;  // one scale for each row
  bool is_mxfp4 = false;

  // Bits of a code as an operand of products.
  constexpr int operand_bits() const { return is_mxfp4 ? 8 : bits; }
};

// Twice the element of an E2M1 code.
inline constexpr int kDoubledElements[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Sizes of a panel, in k-groups, blocks (or super-blocks) and bytes.
struct PanelShape {
  int64_t num_groups, groups_per_block, num_blocks;
  int64_t block_bytes, panel_bytes;
};

PanelShape panel_shape(const QuantizedLayout& layout, int64_t cols);
size_t quantized_bytes(const QuantizedLayout& layout, int64_t rows, int64_t cols);

// A weight [N, K], row-major: floating-point values to be quantised; or codes (one per byte, signed in formats without
// zero points or offsets) with scales [N, blocks], and zero points or offsets. Scales and offsets are float16, or with
// super-blocks the 6-bit sub-scales as bytes, and `super_scales` [N, super-blocks, 2]. Scales of mxfp4 are bytes, and
// it has no values to be quantised.
struct QuantizedSource {
  const void* values;
  am_dtype dtype;  // of values
  const uint8_t* codes;
  const void* scales;
  const uint8_t* zeros;
  const void* offsets = nullptr;
  const uint16_t* super_scales = nullptr;
};

// Packs rows [row_begin, row_begin + num_rows) of a source into their panels of `packed`. Both pointers are those of
// the whole weight; `row_begin` is a multiple of 16, and the part that begins with row 0 writes the header. Returns
// false where a value is not finite or exceeds the largest float16; the packed weight is invalid then.
bool pack_quantized(const QuantizedLayout& layout, const QuantizedSource& source, int64_t row_begin, int64_t num_rows,
                    int64_t cols, void* packed);

}  // namespace aether::cpu
