// Microkernels of quantised weights (quantized_layout.h): how a tile of rows is multiplied by one k-group, 32 values
// along K, of a few panels.
//
//   DequantMicrokernel   Dequantises weights in registers and multiplies in float32. The result equals the definition
//                        of the weight format within the rounding of float32 sums.
//   Int8DotMicrokernel   Dynamic int8 activations. Each k-group of a row is quantised symmetrically,
//
//                          s_x = max |x| / 127,  q_x = round(x / s_x),
//
//                        and a group's dot product is exact in int32:
//
//                          c += s_x · s_w · Σ q_x (q_w − z)  =  s_x · s_w · (Σ q_x q_w − z Σ q_x)
//                          c += s_x · s_w · Σ q_x q_w + (s_x Σ q_x) · offset     of weights with offsets
//
//                        The accumulator starts from −z Σ q_x, where z is the zero point or the constant that makes
//                        codes unsigned. A scale per weight row is applied in the epilogue.
//
// Trained models have outliers: a few channels whose activations are tens of times larger than the others, which makes
// s_x so large that the rest of the k-group rounds to zero. Where a group's largest magnitude exceeds kOutlierRatio
// times the root mean square of its row, the quantisation residual x − s_x q_x is quantised as well and the group is
// multiplied twice: 16-bit activations where they are needed. (LLM.int8(), Dettmers et al., 2022, keeps outlier
// channels in float16 instead.) The choice depends on the row alone, so results are batch-invariant.
//
// Layout of a k-group of a packed tile:
//
//   DequantMicrokernel   [rows][32] float32
//   Int8DotMicrokernel   [rows][32] int8; [rows] int32 −z Σ q_x, or float32 s_x Σ q_x for weights with offsets; [rows]
//                        float32 s_x
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/gemm.h"
#include "kernels/quantized_layout.h"
#include "kernels/team.h"

namespace aether::cpu::AETHER_ISA {

// A code stands for factor · (code − zero), where a format without zero points has a constant one. A 1-bit code is a
// sign, −1 or 1.
template <int Bits>
inline constexpr float kZero = Bits == 1 ? 0.5f : static_cast<float>(1 << (Bits - 1));
template <int Bits>
inline constexpr float kFactor = Bits == 1 ? 2.0f : 1.0f;

// A packed tile: the k-groups of all rows, and of each row the number and the indices of its outlier groups and their
// residuals, laid out as k-groups of a tile of one row.
struct RowTile {
  char* groups;
  char* residuals;
  int32_t* outliers;

  static int64_t outliers_per_row(int64_t num_groups) { return num_groups + 1; }
  int32_t* outliers_of(int64_t row, int64_t num_groups) const { return outliers + row * outliers_per_row(num_groups); }
  char* residuals_of(int64_t row, int64_t num_groups, int64_t group_bytes) const {
    return residuals + row * num_groups * group_bytes;
  }
};

template <QuantizedFormat kFormat>
struct DequantMicrokernel {
  static constexpr int kRows = kTileRows;
  static constexpr int64_t kRowBytes = kGroupK * static_cast<int64_t>(sizeof(float));  // of a k-group
  static constexpr bool kHasResiduals = false;
  static constexpr bool kScalesInEpilogue = false;
  static constexpr int panels_per_tile(int) { return 1; }
  using Zero = Vec;

  static Zero zero_points(const uint8_t* p) { return load_bytes(p); }
  static Zero no_zero_points() { return set1(kZero<kFormat.bits>); }

  // Packs `num_rows` rows of `k` values, at these addresses.
  template <class T>
  static void pack_rows(const T* const* rows, int64_t k, int64_t num_rows, const RowTile& tile) {
    auto* floats = reinterpret_cast<float*>(tile.groups);
    for (int64_t begin = 0; begin < k; begin += kGroupK) {
      const int64_t left = k - begin;
      for (int64_t row = 0; row < num_rows; ++row, floats += kGroupK) {
        const T* values = rows[row] + begin;
        store(floats, load(values, smaller(left, kLanes)));
        store(floats + kLanes, left > kLanes ? load(values + kLanes, smaller(left - kLanes, kLanes)) : zero());
      }
    }
  }

  // Accumulates a k-group.
  template <int R, int P>
  AETHER_INLINE static void add_group(Vec (&sums)[R][P], const char* x, const char* const (&codes)[P],
                                      const Vec (&scales)[P], const Zero (&zeros)[P]) {
    const float* value = reinterpret_cast<const float*>(x);
    for (int64_t step = 0; step < kFormat.bits; ++step) {
      for (int field = 0; field < 8 / kFormat.bits; ++field) {
        for (int byte = 0; byte < 4; ++byte, ++value) {
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            const Vec column =
                column_of(codes[p] + step * kStepBytes, 8 * byte + kFormat.bits * field, scales[p], zeros[p]);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) sums[r][p] = fma(set1(value[r * kGroupK]), column, sums[r][p]);
          }
        }
      }
    }
  }

  // The values of the codes at bit `shift` of sixteen words.
  AETHER_INLINE static Vec column_of(const char* words, int shift, const Vec& scale, const Zero& zero_point) {
    if constexpr (kFormat.is_mxfp4) {
      // Twice the element of a magnitude m is m, 2 m − 4 or 4 m − 16, whichever is the largest.
      const Vec magnitude = load_bit_fields(words, shift, 7u), sign = load_bit_fields(words, shift + 3, 1u);
      const Vec upper = max(fma(magnitude, set1(2.0f), set1(-4.0f)), fma(magnitude, set1(4.0f), set1(-16.0f)));
      return max(magnitude, upper) * fma(sign, set1(-2.0f), set1(1.0f)) * scale;
    } else {
      const Vec code = load_bit_fields(words, shift, (1u << kFormat.bits) - 1u);
      if constexpr (kFormat.has_offset) return fma(code, scale, zero_point);
      return (code - zero_point) * (scale * set1(kFactor<kFormat.bits>));
    }
  }
};

#ifdef AETHER_HAS_INT8_DOT
// Elements of mxfp4 in the form of 8-bit codes.
inline constexpr auto kElementCodes = [] {
  struct {
    alignas(16) uint8_t bytes[16];
  } table{};
  for (int code = 0; code < 16; ++code) table.bytes[code] = static_cast<uint8_t>(128 + kDoubledElements[code]);
  return table;
}();

// Type of what shifts codes: integer zero points, or float offsets.
template <bool HasOffset>
struct ShiftType {
  using Type = IntVec;
};
template <>
struct ShiftType<true> {
  using Type = Vec;
};

// In root mean squares of the row; see above.
inline constexpr float kOutlierRatio = 10.0f;

template <QuantizedFormat kFormat>
struct Int8DotMicrokernel {
  static constexpr int kRows = kInt8TileRows;
  static constexpr int64_t kRowBytes = kGroupK + 4 + 4;  // of a k-group
  static constexpr bool kHasResiduals = true;
  static constexpr bool kScalesInEpilogue = kFormat.has_row_scale;
  static constexpr int panels_per_tile(int rows) { return kTilePanels > 1 && 2 * rows <= kRows ? 2 : 1; }
  using Zero = typename ShiftType<kFormat.has_offset>::Type;

  static IntVec zero_points(const uint8_t* p) { return widen_to_words(p, kCodeOffset<kFormat.bits>); }
  static IntVec no_zero_points() { return IntVec{}; }

  // Packs `num_rows` rows of `k` values, at these addresses.
  template <class T>
  static void pack_rows(const T* const* rows, int64_t k, int64_t num_rows, const RowTile& tile) {
    const int64_t group_bytes = num_rows * kRowBytes, num_groups = ceil_div(k, kGroupK);
    for (int64_t row = 0; row < num_rows; ++row) {
      const T* x = rows[row];
      const float limit = kOutlierRatio * root_mean_square(x, k);
      char* to = tile.groups;
      char* residual = tile.residuals_of(row, num_groups, kRowBytes);
      int32_t* outliers = tile.outliers_of(row, num_groups);
      int32_t count = 0;
      for (int64_t group = 0, left = k; group < num_groups; ++group, left -= kGroupK, to += group_bytes) {
        const T* values = x + group * kGroupK;
        const Vec low = left >= kLanes ? load(values) : load(values, left);
        const Vec high = left >= kGroupK ? load(values + kLanes)
                         : left > kLanes ? load(values + kLanes, left - kLanes)
                                         : zero();
        const float magnitude = put_group(low, high, to, row, num_rows);
        if (!(magnitude > limit)) continue;
        outliers[++count] = static_cast<int32_t>(group);
        const char* codes = to + row * kGroupK;
        const Vec negated_scale = set1(-byte_scale(magnitude));
        put_group(fma(load_integer_codes(codes), negated_scale, low),
                  fma(load_integer_codes(codes + kLanes), negated_scale, high), residual, 0, 1);
        residual += kRowBytes;
      }
      *outliers = count;
    }
  }

  // Accumulates a k-group.
  template <int R, int P>
  AETHER_INLINE static void add_group(Vec (&sums)[R][P], const char* x, const char* const (&codes)[P],
                                      const Vec (&scales)[P], const Zero (&zeros)[P]) {
    if constexpr (R == 1 && !kFormat.has_offset && !kFormat.is_mxfp4 && kMultipliesCodesInPlace &&
                  (kFormat.bits == 4 || kFormat.bits == 2)) {
      return add_group_of_one_row(sums, x, codes, scales, zeros);
    }
    const char* row_sums = x + R * kGroupK;
    const char* row_scales = row_sums + R * 4;
    IntVec dots[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = kInInt16 ? IntVec{} : start(row_sums + r * 4, zeros[p]);
    }
    Vec offsets[P] = {};
    if constexpr (kFormat.has_offset) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const Vec moved = fma(scales[p], set1(static_cast<float>(kCodeOffset<kFormat.bits>)), zeros[p]);
        offsets[p] = kCodeOffset<kFormat.bits> == 0 ? zeros[p] : moved;
      }
    }
#pragma GCC unroll 8
    for (int64_t step = 0; step < kFormat.bits; ++step) add_step(dots, x, codes, step);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec row_scale = set1(load_float(row_scales + r * 4));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        if constexpr (kInInt16) dots[r][p] = widen_dots(dots[r][p], start(row_sums + r * 4, zeros[p]));
        sums[r][p] = fma(to_floats(dots[r][p]), kScalesInEpilogue ? row_scale : scales[p] * row_scale, sums[r][p]);
        if constexpr (kFormat.has_offset) sums[r][p] = fma(set1(load_float(row_sums + r * 4)), offsets[p], sums[r][p]);
      }
    }
  }

 private:
  template <class T>
  static float root_mean_square(const T* x, int64_t k) {
    Vec squares = zero();
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) {
      const Vec value = load(x + i);
      squares = fma(value, value, squares);
    }
    if (i < k) {
      const Vec value = load(x + i, k - i);
      squares = fma(value, value, squares);
    }
    return std::sqrt(reduce_add(squares) / static_cast<float>(k));
  }

  // Quantises a row's k-group; returns its largest magnitude.
  AETHER_INLINE static float put_group(const Vec& low, const Vec& high, char* to, int64_t row, int64_t num_rows) {
    // 1-bit codes are 0 or 2 with a zero point of 1.
    constexpr bool has_unit_offset = kFormat.has_zero_point || kFormat.has_offset || kFormat.bits == 1;
    constexpr int kBits = kFormat.operand_bits();
    constexpr int32_t kOffset = has_unit_offset ? 1 : (1 << (kBits - 1)) - kCodeOffset<kBits>;
    const float magnitude = reduce_magnitude(larger_magnitude(larger_magnitude(zero(), low), high));
    const float scale = byte_scale(magnitude);
    const Vec steps = set1(inverse_byte_scale(magnitude));
    const int32_t sum = round_to_bytes(low * steps, high * steps, to + row * kGroupK);
    to += num_rows * kGroupK + row * 4;
    if constexpr (kFormat.has_offset) {
      const float scaled = scale * static_cast<float>(sum);
      std::memcpy(to, &scaled, 4);
    } else {
      const int32_t negated = -kOffset * sum;
      std::memcpy(to, &negated, 4);
    }
    std::memcpy(to + num_rows * 4, &scale, 4);
    return magnitude;
  }

  template <int R, int P, int Field>
  AETHER_INLINE static void add_codes(IntVec (&dots)[R][P], const char* x, const IntVec (&steps)[P]) {
    IntVec w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      w[p] = unpack_codes<kFormat.bits, Field>(steps[p]);
      if constexpr (kFormat.is_mxfp4) w[p] = look_up_bytes(kElementCodes.bytes, w[p]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const IntVec four = broadcast_word(x + r * kGroupK + 4 * Field);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = dot_bytes<kFormat.operand_bits()>(dots[r][p], w[p], four);
    }
    if constexpr (Field + 1 < 8 / kFormat.bits) add_codes<R, P, Field + 1>(dots, x, steps);
  }

  // Whether products accumulate in int16 pairs until the end of a k-group.
  static constexpr bool kInInt16 = kAccumulatesInInt16<kFormat.operand_bits()>;

  template <class Words>
  AETHER_INLINE static Words widen_dots(const Words& halves, const Words& start) {
    return add_words(add_int16_pairs(halves), start);
  }

  // Initial int32 accumulator of a row whose negated sum is at `sum`.
  AETHER_INLINE static IntVec start(const char* sum, const Zero& zero_point) {
    if constexpr (kFormat.has_offset) {
      return IntVec{};
    } else {
      const IntVec negated = broadcast_word(sum);
      return kFormat.has_zero_point ? multiply_small(zero_point, negated) : negated;
    }
  }

  template <int R, int P>
  AETHER_INLINE static void add_step(IntVec (&dots)[R][P], const char* x, const char* const (&codes)[P], int64_t step) {
    IntVec steps[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) steps[p] = load_words(codes[p] + step * kStepBytes);
    add_codes<R, P, 0>(dots, x + step * (kGroupK / kFormat.bits), steps);
  }

  // add_group of one row, which is bound by instructions: codes are multiplied in place in their bytes, without
  // shifting them down, and each field's sum is shifted right once at the end.
  template <int P>
  AETHER_INLINE static void add_group_of_one_row(Vec (&sums)[1][P], const char* x, const char* const (&codes)[P],
                                                 const Vec (&scales)[P], const Zero (&zeros)[P]) {
    const Vec row_scale = set1(load_float(x + kGroupK + 4));
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      IntVec dots[8 / kFormat.bits] = {start(x + kGroupK, zeros[p])};
#pragma GCC unroll 8
      for (int64_t step = 0; step < kFormat.bits; ++step) {
        add_in_place<0>(dots, x + step * (kGroupK / kFormat.bits), load_words(codes[p] + step * kStepBytes));
      }
      const Vec total = to_floats(sum_of_codes<8 / kFormat.bits - 1>(dots));
      sums[0][p] = fma(total, kScalesInEpilogue ? row_scale : scales[p] * row_scale, sums[0][p]);
    }
  }

  template <int Field>
  AETHER_INLINE static void add_in_place(IntVec (&dots)[8 / kFormat.bits], const char* x, const IntVec& step) {
    dots[Field] =
        dot_bytes<kFormat.bits>(dots[Field], mask_codes<kFormat.bits, Field>(step), broadcast_word(x + 4 * Field));
    if constexpr (Field + 1 < 8 / kFormat.bits) add_in_place<Field + 1>(dots, x, step);
  }

  template <int Last>
  AETHER_INLINE static IntVec sum_of_codes(const IntVec (&dots)[8 / kFormat.bits]) {
    if constexpr (Last == 0) {
      return dots[0];
    } else {
      return add_words(sum_of_codes<Last - 1>(dots), shift_words_right<Last * kFormat.bits>(dots[Last]));
    }
  }

  static float load_float(const char* p) {
    float value;
    std::memcpy(&value, p, 4);
    return value;
  }
};
template <QuantizedFormat kFormat>
using QuantizedMicrokernel = Int8DotMicrokernel<kFormat>;
#else
template <QuantizedFormat kFormat>
using QuantizedMicrokernel = DequantMicrokernel<kFormat>;
#endif

}  // namespace aether::cpu::AETHER_ISA
