// How a tile of rows meets a few panels of quantised weights (quantized_layout.h): one engine for each arithmetic.
//
//   ExactEngine   codes become floats in registers, times the block's scale, and are multiplied in float32. It equals
//                 the weights' definition within the rounding of float32 sums.
//   ByteEngine    ("dynamic int8 activations") a run of a row's values (PanelShape) becomes signed bytes times a
//                 float32 scale, largest magnitude / 127. Products are summed as exact integers over the units of a
//                 run that share a scale of the weight. A zero point, or the offset that makes codes unsigned, times
//                 the negated sum of a unit's bytes is what the integers start from. Runs of 8-bit weights lie within
//                 a block: the integers times the product of the two scales are added to the row's float32 sum. Fewer
//                 bits round so coarsely that longer runs cost nothing: the integers times the weight's scale are
//                 added to the run's float32 sum, which times the run's scale is added to the row's; of 4-bit blocks
//                 that hold whole runs, a run's integers are summed as those of 8 bits. A scale that 8-bit weights
//                 have for a whole row multiplies that at the very end.
//
// A tile is what the rows are brought into:
//
//   ExactEngine   [units][rows][32] floats
//   ByteEngine    [runs]([units of the run]([rows][32] bytes, [rows] negated sums), [rows] scales)
//                 of weights with a scale for a whole row
//                 [runs]([units of the run][rows][32] bytes, [rows] negated sums of the run, [rows] scales)
#pragma once

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

template <QuantizedFormat kFormat>
struct ExactEngine {
  static constexpr int kRows = kTileRows;
  static constexpr int64_t kRowBytes = kUnitK * static_cast<int64_t>(sizeof(float));  // of a unit
  static constexpr bool kHasRunSums = false;
  static constexpr bool kScalesAtEnd = false;
  static constexpr bool kJoinsUnits = false;
  static constexpr int panels_at_once(int) { return 1; }
  using Zero = Vec;

  static Zero zero_points(const uint8_t* p) { return load_bytes(p); }
  static Zero no_zero_points() { return set1(kZero<kFormat.bits>); }

  // Brings row `row` of a tile of `num_rows`, which has `k` values.
  template <class T>
  static void bring(const T* x, int64_t k, int64_t, char* tile, int64_t row, int64_t num_rows) {
    for (; k > 0; k -= kUnitK, x += kUnitK, tile += num_rows * kRowBytes) {
      auto* floats = reinterpret_cast<float*>(tile) + row * kUnitK;
      store(floats, load(x, smaller(k, kLanes)));
      store(floats + kLanes, k > kLanes ? load(x + kLanes, smaller(k - kLanes, kLanes)) : zero());
    }
  }

  // Adds the products of `num_units` units that share scales, and moves on behind them.
  template <int R, int P, class FetchFn>
  AETHER_INLINE static void add_units(Vec (&sums)[R][P], const char*& x, const char* (&codes)[P],
                                      const Vec (&scales)[P], const Zero (&zeros)[P], int64_t num_units,
                                      FetchFn fetch) {
    for (int64_t unit = 0; unit < num_units; ++unit, x += R * kRowBytes) {
      fetch();
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
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) codes[p] += kFormat.bits * kStepBytes;
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

template <QuantizedFormat kFormat>
struct ByteEngine {
  static constexpr int kRows = kByteTileRows;
  static constexpr int64_t kUnitRowBytes = kFormat.has_row_scale ? kUnitK : kUnitK + 4;
  static constexpr int64_t kRowBytes = kUnitK + 4 + 4;  // of a unit, at most
  static constexpr bool kHasRunSums = kFormat.bits < 8 && !kFormat.has_long_blocks;
  static constexpr bool kScalesAtEnd = kFormat.has_row_scale;
  // Whether integers of few bits can be summed over several units.
  static constexpr bool kJoinsUnits = !kSumsUnitsInHalves<4>;
  static constexpr int panels_at_once(int rows) { return kTilePanels > 1 && 2 * rows <= kRows ? 2 : 1; }
  using Zero = typename ShiftOf<kFormat.has_offset>::Type;

  static IntVec zero_points(const uint8_t* p) { return widen_to_words(p, kCodeOffset<kFormat.bits>); }
  static IntVec no_zero_points() { return IntVec{}; }

  // Brings row `row` of a tile of `num_rows`, which has `k` values, in runs of `run_k`.
  template <class T>
  static void bring(const T* x, int64_t k, int64_t run_k, char* tile, int64_t row, int64_t num_rows) {
    for (; k >= run_k; k -= run_k, x += run_k) tile = bring_run(x, run_k, tile, row, num_rows);
    if (k > 0) bring_run(x, k, tile, row, num_rows);
  }

  template <class T>
  AETHER_INLINE static char* bring_run(const T* x, int64_t count, char* tile, int64_t row, int64_t num_rows) {
    // Of a single bit, codes are 0 or 2 and their zero point is 1.
    constexpr bool is_sum = kFormat.has_zero_point || kFormat.has_offset || kFormat.bits == 1;
    constexpr int32_t kOffset = is_sum ? 1 : (1 << (kFormat.bits - 1)) - kCodeOffset<kFormat.bits>;
    const int64_t last = (count - 1) / kUnitK * kUnitK, left = count - last;
    const Vec low = left >= kLanes ? load(x + last) : load(x + last, left);
    const Vec high = left == kUnitK  ? load(x + last + kLanes)
                     : left > kLanes ? load(x + last + kLanes, left - kLanes)
                                     : zero();
    Vec largest = larger_magnitude(larger_magnitude(zero(), low), high);
    for (int64_t i = 0; i < last; i += kUnitK) {
      largest = larger_magnitude(larger_magnitude(largest, load(x + i)), load(x + i + kLanes));
    }
    const float magnitude = reduce_magnitude(largest), scale = byte_scale(magnitude);
    const Vec steps = set1(steps_per_one(magnitude));
    int32_t negated = 0;
    const auto put_sum = [&]() __attribute__((always_inline)) {
      std::memcpy(tile + row * 4, &negated, 4);
      tile += num_rows * 4;
      negated = 0;
    };
    const auto put = [&](const Vec& first, const Vec& second) __attribute__((always_inline)) {
      negated -= kOffset * round_to_bytes(first * steps, second * steps, tile + row * kUnitK);
      tile += num_rows * kUnitK;
      if constexpr (!kFormat.has_row_scale) put_sum();
    };
    for (int64_t i = 0; i < last; i += kUnitK) put(load(x + i), load(x + i + kLanes));
    put(low, high);
    if constexpr (kFormat.has_row_scale) put_sum();
    std::memcpy(tile + row * 4, &scale, 4);
    return tile + num_rows * 4;
  }

  // Adds the products of a step, and calls `finish` for each row that has them.
  template <int R, int P, int Field, class FinishFn>
  AETHER_INLINE static void fields(IntVec (&dots)[R][P], const char* x, const IntVec (&steps)[P], FinishFn finish) {
    IntVec w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) w[p] = fields_of<kFormat.bits, Field>(steps[p]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const IntVec four = broadcast_word(x + r * kUnitK + 4 * Field);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = dot_bytes<kFormat.bits>(dots[r][p], w[p], four);
      if constexpr (Field + 1 == 8 / kFormat.bits) finish(r);
    }
    if constexpr (Field + 1 < 8 / kFormat.bits) fields<R, P, Field + 1>(dots, x, steps, finish);
  }

  // Whether integers are sums in halves of words until a unit ends, which then is all that a call adds.
  static constexpr bool kInHalves = kSumsUnitsInHalves<kFormat.bits>;
  static_assert(!kInHalves || kHasRunSums);

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

  template <int R, int P, class FinishFn>
  AETHER_INLINE static void add_step(IntVec (&dots)[R][P], const char* x, const char* const (&codes)[P], int64_t step,
                                     FinishFn finish) {
    IntVec steps[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) steps[p] = load_words(codes[p] + step * kStepBytes);
    fields<R, P, 0>(dots, x + step * (kUnitK / kFormat.bits), steps, finish);
  }
  static constexpr auto kGoOn = [](int) {};

  // Adds the products of `num_units` units that share scales, and moves on behind them.
  template <int R, int P, class FetchFn>
  AETHER_INLINE static void add_units(Vec (&sums)[R][P], const char*& x, const char* (&codes)[P],
                                      const Vec (&scales)[P], const Zero (&zeros)[P], int64_t num_units,
                                      FetchFn fetch) {
    if constexpr (R == 1 && !kFormat.has_offset && kMultipliesFieldsInPlace &&
                  (kFormat.bits == 4 || kFormat.bits == 2)) {
      return add_units_of_one_row(sums, x, codes, scales, zeros, num_units, fetch);
    }
    if constexpr (kFormat.has_row_scale || kFormat.has_long_blocks)
      return add_run(sums, x, codes, scales, zeros, num_units, fetch);
    IntVec dots[R][P];
    int32_t negated[R] = {};
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = kInHalves ? IntVec{} : start(x + R * kUnitK + r * 4, zeros[p]);
    }
    while (true) {
      fetch();
#pragma GCC unroll 8
      for (int64_t step = 0; step < kFormat.bits; ++step) add_step(dots, x, codes, step, kGoOn);
      if constexpr (kInHalves) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) dots[r][p] = end_halves(dots[r][p], start(x + R * kUnitK + r * 4, zeros[p]));
        }
      }
      if constexpr (kFormat.has_offset) {
        for (int r = 0; r < R; ++r) negated[r] += load_word(x + R * kUnitK + r * 4);
      }
      x += R * kUnitRowBytes;
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) codes[p] += kFormat.bits * kStepBytes;
      if (--num_units == 0) break;
      if constexpr (kFormat.has_offset) continue;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) dots[r][p] = add_words(dots[r][p], start(x + R * kUnitK + r * 4, zeros[p]));
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      add_integers(sums[r], dots[r], x + r * 4, scales);
      if constexpr (kFormat.has_offset) {
        const float run_scale = kHasRunSums ? 1.0f : load_float(x + r * 4);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const Vec moved = fma(scales[p], set1(static_cast<float>(kCodeOffset<kFormat.bits>)), zeros[p]);
          const Vec offset = kCodeOffset<kFormat.bits> == 0 ? zeros[p] : moved;
          sums[r][p] = fma(set1(-run_scale * static_cast<float>(negated[r])), offset, sums[r][p]);
        }
      }
    }
    if constexpr (!kHasRunSums) x += R * 4;
  }

  // Adds a row's integers times the scales that they share: of the weight unless that multiplies at the end, and of
  // their run, which is at `at`, unless it has sums of its own.
  template <int P>
  AETHER_INLINE static void add_integers(Vec (&sums)[P], const IntVec (&dots)[P], const char* at,
                                         const Vec (&scales)[P]) {
    const Vec run_scale = kHasRunSums ? zero() : set1(load_float(at));
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const Vec scale = kHasRunSums ? scales[p] : kScalesAtEnd ? run_scale : scales[p] * run_scale;
      sums[p] = fma(to_floats(dots[p]), scale, sums[p]);
    }
  }

  // `add_units` of one row, of which instructions bound how far ahead a core reads: fields are multiplied where they
  // stand in their bytes, and so by a power of two too much, which is taken from their sums.
  template <int P, class FetchFn>
  AETHER_INLINE static void add_units_of_one_row(Vec (&sums)[1][P], const char*& x, const char* (&codes)[P],
                                                 const Vec (&scales)[P], const Zero (&zeros)[P], int64_t num_units,
                                                 FetchFn fetch) {
    IntVec totals[P] = {};
    for (int64_t unit = 0; unit < (kHasRunSums ? 1 : num_units); ++unit) {
      fetch();
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        IntVec dots[8 / kFormat.bits] = {start(x + kUnitK, zeros[p])};
#pragma GCC unroll 8
        for (int64_t step = 0; step < kFormat.bits; ++step) {
          add_in_place<0>(dots, x + step * (kUnitK / kFormat.bits), load_words(codes[p] + step * kStepBytes));
        }
        totals[p] = add_words(totals[p], sum_of_fields<8 / kFormat.bits - 1>(dots));
        codes[p] += kFormat.bits * kStepBytes;
      }
      x += kUnitRowBytes;
    }
    add_integers(sums[0], totals, x, scales);
    if constexpr (!kHasRunSums) x += 4;
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

  // `add_units` of a whole run. By scales that weights have for whole rows the caller multiplies. Rows of the tile end
  // one by one, between the last products of those that follow: a core does both at once.
  template <int R, int P, class FetchFn>
  AETHER_INLINE static void add_run(Vec (&sums)[R][P], const char*& x, const char* (&codes)[P], const Vec (&scales)[P],
                                    const Zero (&zeros)[P], int64_t num_units, FetchFn fetch) {
    const char* end = x + num_units * R * kUnitRowBytes;
    const char* run_scales = kFormat.has_row_scale ? end + R * 4 : end;
    IntVec dots[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t negated = kFormat.has_row_scale ? load_word(end + r * 4) : 0;
      for (const char* unit = x; !kFormat.has_row_scale && unit < end; unit += R * kUnitRowBytes) {
        negated += load_word(unit + R * kUnitK + r * 4);
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = start(reinterpret_cast<const char*>(&negated), zeros[p]);
    }
    const auto move_on = [&]() __attribute__((always_inline)) {
      x += R * kUnitRowBytes;
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) codes[p] += kFormat.bits * kStepBytes;
    };
    while (true) {
      fetch();
#pragma GCC unroll 8
      for (int64_t step = 0; step + 1 < kFormat.bits; ++step) add_step(dots, x, codes, step, kGoOn);
      if (--num_units == 0) break;
      add_step(dots, x, codes, kFormat.bits - 1, kGoOn);
      move_on();
    }
    add_step(dots, x, codes, kFormat.bits - 1,
             [&](int r) __attribute__((always_inline)) { add_integers(sums[r], dots[r], run_scales + r * 4, scales); });
    move_on();
    x = run_scales + R * 4;
  }

  // Takes the sums of a run to its rows, and moves on behind it.
  template <int R, int P>
  AETHER_INLINE static void end_run(Vec (&sums)[R][P], const char*& x, float* rows, int64_t row_stride, bool is_first) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec scale = set1(load_float(x + r * 4));
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        float* row = rows + r * row_stride + p * kPanelColumns;
        store(row, is_first ? sums[r][p] * scale : fma(sums[r][p], scale, load(row)));
        sums[r][p] = zero();
      }
    }
    x += R * 4;
  }

 private:
  static int32_t load_word(const char* p) {
    int32_t word;
    std::memcpy(&word, p, 4);
    return word;
  }
  static float load_float(const char* p) { return __builtin_bit_cast(float, load_word(p)); }
};
template <QuantizedFormat kFormat>
using QuantizedEngine = ByteEngine<kFormat>;
#else
template <QuantizedFormat kFormat>
using QuantizedEngine = ExactEngine<kFormat>;
#endif

}  // namespace aether::cpu::AETHER_ISA
