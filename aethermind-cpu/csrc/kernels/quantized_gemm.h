// The matrix product over quantised weights (quantized_layout.h): C = X · Wᵀ in float32.
//
// An engine says how a unit of 32 values along K of a few rows meets the same unit of a few panels. The rows are
// brought into scratch first, as records of a unit each, in tiles of up to kRows rows:
//
//   tile [units][record of all its rows]
//
// Two engines:
//   ExactEngine   codes become floats in registers, times the block's scale, and are multiplied in float32; a record is
//                 [rows][32] floats. It equals the weights' definition within the rounding of float32 sums.
//   ByteEngine    ("dynamic int8 activations") each row's 32 values become signed bytes times a float32 scale of their
//                 own, largest magnitude / 127. The unit's sum of products is an exact integer; times the product of
//                 the two scales it is added to the row's float32 sum. A record is [rows][32] bytes, [rows] scales,
//                 [rows] negated sums of codes. A zero point, or the offset that makes codes unsigned, times that sum
//                 is what the integers start from. An offset times the sum is added to the row's float32 sum.
//
// Every element of C is one chain of multiply-adds over ascending K, whatever the blocking: a row's result depends
// neither on the other rows of the batch nor on the number of workers.
#pragma once

#include <cstring>

#include "kernels/gemm.h"
#include "kernels/quantized_layout.h"
#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// What a code of a format stands for: factor · (code − zero), the zero point being constant where a block has none. A
// bit is a sign, −1 or 1.
template <int Bits>
inline constexpr float kZero = Bits == 1 ? 0.5f : static_cast<float>(1 << (Bits - 1));
template <int Bits>
inline constexpr float kFactor = Bits == 1 ? 2.0f : 1.0f;

template <int Bits, bool HasZeroPoint, bool HasOffset = false>
struct ExactEngine {
  static constexpr int64_t kRowBytes = kUnitK * static_cast<int64_t>(sizeof(float));
  static constexpr int kRows = kTileRows;
  static constexpr int panels_at_once(int) { return 1; }
  using Zero = Vec;

  static Zero zero_points(const uint8_t* p) { return load_bytes(p); }
  static Zero no_zero_points() { return set1(kZero<Bits>); }

  template <class T>
  AETHER_INLINE static void bring(const T* x, int64_t count, char* record, int64_t row, int64_t) {
    auto* floats = reinterpret_cast<float*>(record) + row * kUnitK;
    store(floats, load(x, smaller(count, kLanes)));
    store(floats + kLanes, count > kLanes ? load(x + kLanes, count - kLanes) : zero());
  }

  template <int R, int P>
  AETHER_INLINE static void unit(Vec (&sums)[R][P], const char* x, const char* const (&codes)[P],
                                 const Vec (&scales)[P], const Zero (&zeros)[P]) {
    const float* value = reinterpret_cast<const float*>(x);
    for (int64_t step = 0; step < Bits; ++step) {
      for (int field = 0; field < 8 / Bits; ++field) {
        for (int byte = 0; byte < 4; ++byte, ++value) {
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
            const Vec code = load_fields(codes[p] + step * kStepBytes, 8 * byte + Bits * field, (1u << Bits) - 1u);
            const Vec column =
                HasOffset ? fma(code, scales[p], zeros[p]) : (code - zeros[p]) * (scales[p] * set1(kFactor<Bits>));
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

template <int Bits, bool HasZeroPoint, bool HasOffset = false>
struct ByteEngine {
  static constexpr int64_t kRowBytes = kUnitK + 8;
  static constexpr int kRows = kByteTileRows;
  static constexpr int panels_at_once(int rows) { return kTilePanels > 1 && 2 * rows <= kRows ? 2 : 1; }
  using Zero = typename ShiftOf<HasOffset>::Type;

  static IntVec zero_points(const uint8_t* p) { return widen_to_words(p, kCodeOffset<Bits>); }
  static IntVec no_zero_points() { return IntVec{}; }

  template <class T>
  AETHER_INLINE static void bring(const T* x, int64_t count, char* record, int64_t row, int64_t num_rows) {
    const Vec low = count >= kLanes ? load(x) : load(x, count);
    const Vec high = count >= 2 * kLanes ? load(x + kLanes)
                     : count > kLanes    ? load(x + kLanes, count - kLanes)
                                         : zero();
    const ByteBlock block = quantize_values(low, high, record + row * kUnitK);
    // Of a single bit, codes are 0 or 2 and their zero point is 1.
    constexpr bool is_sum = HasZeroPoint || HasOffset || Bits == 1;
    constexpr int32_t kOffset = is_sum ? 1 : (1 << (Bits - 1)) - kCodeOffset<Bits>;
    const int32_t correction = -block.sum * kOffset;
    std::memcpy(record + num_rows * kUnitK + row * 4, &block.scale, 4);
    std::memcpy(record + num_rows * (kUnitK + 4) + row * 4, &correction, 4);
  }

  template <int R, int P, int Field>
  AETHER_INLINE static void fields(IntVec (&dots)[R][P], const char* x, const IntVec (&steps)[P]) {
    IntVec w[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) w[p] = fields_of<Bits, Field>(steps[p]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const IntVec four = broadcast_word(x + r * kUnitK + 4 * Field);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) dots[r][p] = dot_bytes<Bits>(dots[r][p], w[p], four);
    }
    if constexpr (Field + 1 < 8 / Bits) fields<R, P, Field + 1>(dots, x, steps);
  }

  template <int R, int P>
  AETHER_INLINE static void unit(Vec (&sums)[R][P], const char* x, const char* const (&codes)[P],
                                 const Vec (&scales)[P], const Zero (&zeros)[P]) {
    IntVec dots[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const IntVec correction = broadcast_word(x + R * (kUnitK + 4) + r * 4);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        if constexpr (HasOffset) {
          dots[r][p] = IntVec{};
        } else {
          dots[r][p] = HasZeroPoint ? multiply_small(zeros[p], correction) : correction;
        }
      }
    }
#pragma GCC unroll 8
    for (int64_t step = 0; step < Bits; ++step) {
      IntVec steps[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) steps[p] = load_words(codes[p] + step * kStepBytes);
      fields<R, P, 0>(dots, x + step * (kUnitK / Bits), steps);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float scale;
      std::memcpy(&scale, x + R * kUnitK + r * 4, 4);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) sums[r][p] = fma(to_floats(dots[r][p]), scales[p] * set1(scale), sums[r][p]);
      if constexpr (HasOffset) {
        int32_t negated_sum;
        std::memcpy(&negated_sum, x + R * (kUnitK + 4) + r * 4, 4);
        const Vec sum = set1(-scale * static_cast<float>(negated_sum));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const Vec offset = fma(scales[p], set1(static_cast<float>(kCodeOffset<Bits>)), zeros[p]);
          sums[r][p] = fma(sum, kCodeOffset<Bits> == 0 ? zeros[p] : offset, sums[r][p]);
        }
      }
    }
  }
};
template <int Bits, bool HasZeroPoint, bool HasOffset = false>
using QuantizedEngine = ByteEngine<Bits, HasZeroPoint, HasOffset>;
#else
template <int Bits, bool HasZeroPoint, bool HasOffset = false>
using QuantizedEngine = ExactEngine<Bits, HasZeroPoint, HasOffset>;
#endif

// One tile by P panels. The sums of row r and panel p are written to sums[r * row_stride + p * 16 …].
template <class E, int R, int P, int Bits, bool HasZeroPoint, bool HasOffset>
__attribute__((noinline)) void multiply_quantized(const char* x, const char* const* panels, const PanelShape& shape,
                                                  const Fetch& fetch, float* sums, int64_t row_stride) {
  Vec totals[R][P];
  const char* codes[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) codes[p] = panels[p];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) totals[r][p] = zero();
  }
  int64_t unit = 0;
  while (unit < shape.num_units) {
    Vec scales[P];
    typename E::Zero zeros[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      scales[p] = load(reinterpret_cast<const Float16*>(codes[p]));
      codes[p] += kScaleBytes;
      if constexpr (HasZeroPoint) {
        zeros[p] = E::zero_points(reinterpret_cast<const uint8_t*>(codes[p]));
        codes[p] += kZeroBytes;
      } else if constexpr (HasOffset) {
        zeros[p] = load(reinterpret_cast<const Float16*>(codes[p]));
        codes[p] += kOffsetBytes;
      } else {
        zeros[p] = E::no_zero_points();
      }
    }
    const int64_t end = smaller(unit + shape.units_per_block, shape.num_units);
    for (; unit < end; ++unit) {
      for (int64_t step = fetch.first; step < Bits; step += fetch.stride) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) __builtin_prefetch(codes[p] + fetch.distance + step * kStepBytes, 0, 3);
      }
      E::template unit<R, P>(totals, x, codes, scales, zeros);
      x += R * E::kRowBytes;
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) codes[p] += Bits * kStepBytes;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) store(sums + r * row_stride + p * kPanelColumns, totals[r][p]);
  }
}

using QuantizedTileFn = void (*)(const char*, const char* const*, const PanelShape&, const Fetch&, float*, int64_t);
template <class T>
using BringFn = void (*)(const T*, int64_t, char*, int64_t, int64_t);

// Brings row `row` of a tile of `num_rows`, which has `k` values.
template <class E, class T>
void bring_row(const T* x, int64_t k, char* tile, int64_t row, int64_t num_rows) {
  for (; k >= kUnitK; k -= kUnitK, x += kUnitK, tile += num_rows * E::kRowBytes)
    E::bring(x, kUnitK, tile, row, num_rows);
  if (k > 0) E::bring(x, k, tile, row, num_rows);
}

inline constexpr int kQuantizedRows = QuantizedEngine<8, false>::kRows;
inline constexpr int64_t kRecordRowBytes = QuantizedEngine<8, false>::kRowBytes;

constexpr int quantized_panels_at_once(int64_t rows) {
  return QuantizedEngine<8, false>::panels_at_once(static_cast<int>(rows));
}

// The most rows of a tile where there are `rows`. A few tall tiles read each panel's codes fewer times; where there are
// more, low ones take two panels at once, if the engine can.
constexpr int64_t quantized_tile_rows(int64_t rows) {
  constexpr int64_t half = (kQuantizedRows + 1) / 2;
  return rows > 4 * kQuantizedRows && quantized_panels_at_once(half) > 1 ? half : kQuantizedRows;
}

// The tile kernels of a format by number of rows, for as many panels as they take at once and for a single one.
struct QuantizedTiles {
  QuantizedTileFn several[kQuantizedRows + 1] = {};
  QuantizedTileFn single[kQuantizedRows + 1] = {};
};

template <int Bits, bool HasZeroPoint, bool HasOffset>
struct QuantizedTilesOf : QuantizedTiles {
  using E = QuantizedEngine<Bits, HasZeroPoint, HasOffset>;

  template <int R>
  constexpr void fill() {
    several[R] = multiply_quantized<E, R, quantized_panels_at_once(R), Bits, HasZeroPoint, HasOffset>;
    single[R] = multiply_quantized<E, R, 1, Bits, HasZeroPoint, HasOffset>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr QuantizedTilesOf() { fill<kQuantizedRows>(); }
};
template <int Bits, bool HasZeroPoint, bool HasOffset>
inline constexpr QuantizedTilesOf<Bits, HasZeroPoint, HasOffset> kQuantizedTiles;

// Calls f with the format's bits, zero points and offsets as constants.
template <class F>
AETHER_INLINE auto with_format(const QuantizedLayout& layout, F f) {
  if (layout.has_offset) {
    return layout.bits == 4 ? f.template operator()<4, false, true>() : f.template operator()<8, false, true>();
  }
  switch (layout.bits * 2 + layout.has_zero_point) {
    case 17:
      return f.template operator()<8, true>();
    case 9:
      return f.template operator()<4, true>();
    case 8:
      return f.template operator()<4, false>();
    case 5:
      return f.template operator()<2, true>();
    case 2:
      return f.template operator()<1, false>();
    default:
      return f.template operator()<8, false>();
  }
}

}  // namespace aether::cpu::AETHER_ISA
