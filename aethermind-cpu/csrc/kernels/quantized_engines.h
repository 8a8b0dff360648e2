// How a tile of rows meets a few panels of quantised weights (quantized_layout.h): one engine for each arithmetic.
//
//   ExactEngine   codes become floats in registers, times the block's scale, and are multiplied in float32. It equals
//                 the weights' definition within the rounding of float32 sums.
//   ByteEngine    ("dynamic int8 activations") a unit of a row's values becomes signed bytes times a float32 scale,
//                 largest magnitude / 127. A unit's products are summed as exact integers; these, times the product of
//                 the two scales, are added to the row's float32 sum. A zero point, or the offset that makes codes
//                 unsigned, times the negated sum of the unit's bytes is what the integers start from. A scale that
//                 weights have for a whole row multiplies at the very end.
//
// Trained models have outliers: a few channels whose values are tens of times those of the others. Of a unit with
// one, everything else is lost in the rounding. So where a unit's largest magnitude is above `kOutlierRatio` times the
// root mean square of its row, what rounding left is quantised once more, and the unit is multiplied twice: 16-bit
// activations where they are needed (compare LLM.int8(), Dettmers et al. 2022, which keeps outlier channels apart in
// float16). Which units those are is decided by the row alone, so that an answer does not depend on its batch.
//
// Of a tile's units ([units]) an engine has
//
//   ExactEngine   [rows][32] floats
//   ByteEngine    [rows][32] bytes, [rows] negated sums (int32), or sums times scales (float32) for weights with
//                 offsets, [rows] scales
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/gemm.h"
#include "kernels/quantized_layout.h"
#include "kernels/team.h"

namespace aether::cpu::AETHER_ISA {

// What a code of a format stands for: factor · (code − zero), the zero point being constant where a block has none. A
// bit is a sign, −1 or 1.
template <int Bits>
inline constexpr float kZero = Bits == 1 ? 0.5f : static_cast<float>(1 << (Bits - 1));
template <int Bits>
inline constexpr float kFactor = Bits == 1 ? 2.0f : 1.0f;

// Rows brought into scratch: their units one after another; and of each row by itself the units with outliers, how many
// and which, and what rounding left of them, as units of a tile of one row.
struct RowTile {
  char* units;
  char* residuals;
  int32_t* outliers;

  static int64_t outliers_per_row(int64_t num_units) { return num_units + 1; }
  int32_t* outliers_of(int64_t row, int64_t num_units) const { return outliers + row * outliers_per_row(num_units); }
  char* residuals_of(int64_t row, int64_t num_units, int64_t unit_bytes) const {
    return residuals + row * num_units * unit_bytes;
  }
};

template <QuantizedFormat kFormat>
struct ExactEngine {
  static constexpr int kRows = kTileRows;
  static constexpr int64_t kRowBytes = kUnitK * static_cast<int64_t>(sizeof(float));  // of a unit
  static constexpr bool kHasResiduals = false;
  static constexpr bool kScalesAtEnd = false;
  static constexpr int panels_at_once(int) { return 1; }
  using Zero = Vec;

  static Zero zero_points(const uint8_t* p) { return load_bytes(p); }
  static Zero no_zero_points() { return set1(kZero<kFormat.bits>); }

  // Brings `num_rows` rows of `k` values.
  template <class T>
  static void bring(const T* x, int64_t k, int64_t num_rows, const RowTile& tile) {
    auto* floats = reinterpret_cast<float*>(tile.units);
    for (int64_t begin = 0; begin < k; begin += kUnitK) {
      const int64_t left = k - begin;
      for (int64_t row = 0; row < num_rows; ++row, floats += kUnitK) {
        const T* values = x + row * k + begin;
        store(floats, load(values, smaller(left, kLanes)));
        store(floats + kLanes, left > kLanes ? load(values + kLanes, smaller(left - kLanes, kLanes)) : zero());
      }
    }
  }

  // Adds the products of a unit.
  template <int R, int P>
  AETHER_INLINE static void add_unit(Vec (&sums)[R][P], const char* x, const char* const (&codes)[P],
                                     const Vec (&scales)[P], const Zero (&zeros)[P]) {
    const float* value = reinterpret_cast<const float*>(x);
    for (int64_t step = 0; step < kFormat.bits; ++step) {
      for (int field = 0; field < 8 / kFormat.bits; ++field) {
        for (int byte = 0; byte < 4; ++byte, ++value) {
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            const Vec code =
                load_fields(codes[p] + step * kStepBytes, 8 * byte + kFormat.bits * field, (1u << kFormat.bits) - 1u);
            const Vec column = kFormat.has_offset ? fma(code, scales[p], zeros[p])
                                                  : (code - zeros[p]) * (scales[p] * set1(kFactor<kFormat.bits>));
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) sums[r][p] = fma(set1(value[r * kUnitK]), column, sums[r][p]);
          }
        }
      }
    }
  }
};

#ifdef AETHER_HAS_BYTE_DOT
// What shifts codes: integers that are zero points, or floats that are offsets.
template <bool HasOffset>
struct ShiftOf {
  using Type = IntVec;
};
template <>
struct ShiftOf<true> {
  using Type = Vec;
};

// A unit of a larger magnitude, in root mean squares of its row, is multiplied twice: a few in a hundred of a trained
// model's (docs/performance.md, Published models).
inline constexpr float kOutlierRatio = 10.0f;

template <QuantizedFormat kFormat>
struct ByteEngine {
  static constexpr int kRows = kByteTileRows;
  static constexpr int64_t kRowBytes = kUnitK + 4 + 4;  // of a unit
  static constexpr bool kHasResiduals = true;
  static constexpr bool kScalesAtEnd = kFormat.has_row_scale;
  static constexpr int panels_at_once(int rows) { return kTilePanels > 1 && 2 * rows <= kRows ? 2 : 1; }
  using Zero = typename ShiftOf<kFormat.has_offset>::Type;

  static IntVec zero_points(const uint8_t* p) { return widen_to_words(p, kCodeOffset<kFormat.bits>); }
  static IntVec no_zero_points() { return IntVec{}; }

  // Brings `num_rows` rows of `k` values.
  template <class T>
  static void bring(const T* x, int64_t k, int64_t num_rows, const RowTile& tile) {
    const int64_t unit_bytes = num_rows * kRowBytes, num_units = divide_up(k, kUnitK);
    for (int64_t row = 0; row < num_rows; ++row, x += k) {
      const float limit = kOutlierRatio * root_mean_square(x, k);
      char* to = tile.units;
      char* residual = tile.residuals_of(row, num_units, kRowBytes);
      int32_t* outliers = tile.outliers_of(row, num_units);
      int32_t count = 0;
      for (int64_t unit = 0, left = k; unit < num_units; ++unit, left -= kUnitK, to += unit_bytes) {
        const T* values = x + unit * kUnitK;
        const Vec low = left >= kLanes ? load(values) : load(values, left);
        const Vec high = left >= kUnitK  ? load(values + kLanes)
                         : left > kLanes ? load(values + kLanes, left - kLanes)
                                         : zero();
        const float magnitude = put_unit(low, high, to, row, num_rows);
        if (!(magnitude > limit)) continue;
        outliers[++count] = static_cast<int32_t>(unit);
        const char* codes = to + row * kUnitK;
        const Vec negated_scale = set1(-byte_scale(magnitude));
        put_unit(fma(load_integer_codes(codes), negated_scale, low),
                 fma(load_integer_codes(codes + kLanes), negated_scale, high), residual, 0, 1);
        residual += kRowBytes;
      }
      *outliers = count;
    }
  }

  // Adds the products of a unit.
  template <int R, int P>
  AETHER_INLINE static void add_unit(Vec (&sums)[R][P], const char* x, const char* const (&codes)[P],
                                     const Vec (&scales)[P], const Zero (&zeros)[P]) {
    if constexpr (R == 1 && !kFormat.has_offset && kMultipliesFieldsInPlace &&
                  (kFormat.bits == 4 || kFormat.bits == 2)) {
      return add_unit_of_one_row(sums, x, codes, scales, zeros);
    }
    const char* row_sums = x + R * kUnitK;
    const char* row_scales = row_sums + R * 4;
    IntVec dots[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = kInHalves ? IntVec{} : start(row_sums + r * 4, zeros[p]);
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
        if constexpr (kInHalves) dots[r][p] = end_halves(dots[r][p], start(row_sums + r * 4, zeros[p]));
        sums[r][p] = fma(to_floats(dots[r][p]), kScalesAtEnd ? row_scale : scales[p] * row_scale, sums[r][p]);
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

  // Writes a row's part of a unit; returns the largest magnitude.
  AETHER_INLINE static float put_unit(const Vec& low, const Vec& high, char* to, int64_t row, int64_t num_rows) {
    // Of a single bit, codes are 0 or 2 and their zero point is 1.
    constexpr bool is_sum = kFormat.has_zero_point || kFormat.has_offset || kFormat.bits == 1;
    constexpr int32_t kOffset = is_sum ? 1 : (1 << (kFormat.bits - 1)) - kCodeOffset<kFormat.bits>;
    const float magnitude = reduce_magnitude(larger_magnitude(larger_magnitude(zero(), low), high));
    const float scale = byte_scale(magnitude);
    const Vec steps = set1(steps_per_one(magnitude));
    const int32_t sum = round_to_bytes(low * steps, high * steps, to + row * kUnitK);
    to += num_rows * kUnitK + row * 4;
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
  AETHER_INLINE static void add_fields(IntVec (&dots)[R][P], const char* x, const IntVec (&steps)[P]) {
    IntVec w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) w[p] = fields_of<kFormat.bits, Field>(steps[p]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const IntVec four = broadcast_word(x + r * kUnitK + 4 * Field);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = dot_bytes<kFormat.bits>(dots[r][p], w[p], four);
    }
    if constexpr (Field + 1 < 8 / kFormat.bits) add_fields<R, P, Field + 1>(dots, x, steps);
  }

  // Whether integers are sums in halves of words until a unit ends.
  static constexpr bool kInHalves = kSumsUnitsInHalves<kFormat.bits>;

  template <class Words>
  AETHER_INLINE static Words end_halves(const Words& halves, const Words& start) {
    return add_words(add_halves(halves), start);
  }

  // What the integers of a row start from, whose negated sum is at `sum`.
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
    add_fields<R, P, 0>(dots, x + step * (kUnitK / kFormat.bits), steps);
  }

  // `add_unit` of one row, of which instructions bound how far ahead a core reads: fields are multiplied where they
  // stand in their bytes, and so by a power of two too much, which is taken from their sums.
  template <int P>
  AETHER_INLINE static void add_unit_of_one_row(Vec (&sums)[1][P], const char* x, const char* const (&codes)[P],
                                                const Vec (&scales)[P], const Zero (&zeros)[P]) {
    const Vec row_scale = set1(load_float(x + kUnitK + 4));
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      IntVec dots[8 / kFormat.bits] = {start(x + kUnitK, zeros[p])};
#pragma GCC unroll 8
      for (int64_t step = 0; step < kFormat.bits; ++step) {
        add_in_place<0>(dots, x + step * (kUnitK / kFormat.bits), load_words(codes[p] + step * kStepBytes));
      }
      const Vec total = to_floats(sum_of_fields<8 / kFormat.bits - 1>(dots));
      sums[0][p] = fma(total, kScalesAtEnd ? row_scale : scales[p] * row_scale, sums[0][p]);
    }
  }

  template <int Field>
  AETHER_INLINE static void add_in_place(IntVec (&dots)[8 / kFormat.bits], const char* x, const IntVec& step) {
    dots[Field] =
        dot_bytes<kFormat.bits>(dots[Field], fields_in_place<kFormat.bits, Field>(step), broadcast_word(x + 4 * Field));
    if constexpr (Field + 1 < 8 / kFormat.bits) add_in_place<Field + 1>(dots, x, step);
  }

  template <int Last>
  AETHER_INLINE static IntVec sum_of_fields(const IntVec (&dots)[8 / kFormat.bits]) {
    if constexpr (Last == 0) {
      return dots[0];
    } else {
      return add_words(sum_of_fields<Last - 1>(dots), shift_words_right<Last * kFormat.bits>(dots[Last]));
    }
  }

  static float load_float(const char* p) {
    float value;
    std::memcpy(&value, p, 4);
    return value;
  }
};
template <QuantizedFormat kFormat>
using QuantizedEngine = ByteEngine<kFormat>;
#else
template <QuantizedFormat kFormat>
using QuantizedEngine = ExactEngine<kFormat>;
#endif

}  // namespace aether::cpu::AETHER_ISA
