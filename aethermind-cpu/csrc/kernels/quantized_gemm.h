// Matrix product with quantised weights (quantized_layout.h): C = X · Wᵀ in float32. Rows are packed into tiles first
// (quantized_microkernels.h).
//
// Batch invariance: every element of C is one FMA chain over ascending K, whatever the blocking. A row's result depends
// neither on the other rows of the batch nor on the number of workers.
#pragma once

#include "kernels/gemm.h"
#include "kernels/quantized_layout.h"
#include "kernels/quantized_microkernels.h"

namespace aether::cpu::AETHER_ISA {

// Sub-scale number `Index` of a super-block for each of sixteen columns (quantized_layout.h).
template <int Index>
AETHER_INLINE Vec sub_scale(const char* words) {
  if constexpr (Index < 3 * kSubScalesPerWord) {
    constexpr uint32_t mask = (1u << kSubScaleBits) - 1u;
    return load_bit_fields(words + Index / kSubScalesPerWord * kStepBytes, Index % kSubScalesPerWord * kSubScaleBits,
                           mask);
  } else {
    constexpr int shift = kSubScalesPerWord * kSubScaleBits;
    const Vec low = load_bit_fields(words, shift, 3u), middle = load_bit_fields(words + kStepBytes, shift, 3u);
    return fma(load_bit_fields(words + 2 * kStepBytes, shift, 3u), set1(16.0f), fma(middle, set1(4.0f), low));
  }
}

// Scales and offsets of a super-block's k-groups: super-block scale times sub-scale, 17 bits, exact in float32.
template <bool HasSuperBlocks>
struct SuperBlockScales {
  Vec scales[kSuperBlockGroups], offsets[kSuperBlockGroups];

  // Reads them at `packed`; returns the address of the codes.
  AETHER_INLINE const char* unpack(const char* packed) {
    const Vec scale = load(reinterpret_cast<const Float16*>(packed));
    const Vec offset = load(reinterpret_cast<const Float16*>(packed + kScaleBytes));
    unpack_group<0>(packed + kScaleBytes + kOffsetBytes, scale, offset);
    return packed + kSuperBlockScaleBytes;
  }

 private:
  template <int Group>
  AETHER_INLINE void unpack_group(const char* words, const Vec& scale, const Vec& offset) {
    scales[Group] = sub_scale<2 * Group>(words) * scale;
    offsets[Group] = sub_scale<2 * Group + 1>(words) * offset;
    if constexpr (Group + 1 < kSuperBlockGroups) unpack_group<Group + 1>(words, scale, offset);
  }
};
template <>
struct SuperBlockScales<false> {};

// Reads the scales, and zero points or offsets, of the block at `codes`; advances `codes` to the block's codes.
template <QuantizedFormat kFormat, class Zero>
AETHER_INLINE void read_scales(const char*& codes, Vec& scale, Zero& zero) {
  using Micro = QuantizedMicrokernel<kFormat>;
  if constexpr (kFormat.is_mxfp4) {
    scale = load_powers_of_two(reinterpret_cast<const uint8_t*>(codes)) * set1(0.5f);  // of doubled elements
    zero = Micro::no_zero_points();
    codes += kExponentBytes;
    return;
  }
  scale = load(reinterpret_cast<const Float16*>(codes));
  codes += kScaleBytes;
  if constexpr (kFormat.has_zero_point) {
    zero = Micro::zero_points(reinterpret_cast<const uint8_t*>(codes));
    codes += kZeroBytes;
  } else if constexpr (kFormat.has_offset) {
    zero = load(reinterpret_cast<const Float16*>(codes));
    codes += kOffsetBytes;
  } else {
    zero = Micro::no_zero_points();
  }
}

// Tile kernel: one tile by P panels. Writes the sums of row r and panel p to sums[r * row_stride + p * 16 …].
template <QuantizedFormat kFormat, int R, int P>
__attribute__((noinline)) void multiply_quantized(const char* x, const char* const* panels, const PanelShape& shape,
                                                  const Prefetch& prefetch, float* sums, int64_t row_stride) {
  using Micro = QuantizedMicrokernel<kFormat>;
  const char* codes[P];
  Vec scales[P] = {};
  typename Micro::Zero zeros[P] = {};
  [[maybe_unused]] SuperBlockScales<kFormat.has_super_blocks> block_scales[P];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) codes[p] = panels[p];
  int64_t ahead = prefetch.distance;
  const auto prefetch_ahead = [&]() __attribute__((always_inline)) {
    if constexpr (R == 1) {  // a single tile: the lines it reads, `distance` bytes ahead
#pragma GCC unroll 8
      for (int64_t step = 0; step < kFormat.bits; ++step) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) prefetch_line(codes[p] + prefetch.distance + step * kStepBytes);
      }
    } else {
      for (int64_t i = 0; i < prefetch.count; ++i, ahead += kLineBytes) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) prefetch_line(panels[p] + ahead);
      }
    }
  };
  Vec totals[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) totals[r][p] = zero();
  }
  for (int64_t group = 0, block_end = 0; group < shape.num_groups; ++group, x += R * Micro::kRowBytes) {
    if (group == block_end) {
      block_end = smaller(group + shape.groups_per_block, shape.num_groups);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        if constexpr (kFormat.has_super_blocks) {
          codes[p] = block_scales[p].unpack(codes[p]);
        } else {
          read_scales<kFormat>(codes[p], scales[p], zeros[p]);
        }
      }
    }
    if constexpr (kFormat.has_super_blocks) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        scales[p] = block_scales[p].scales[group % kSuperBlockGroups];
        zeros[p] = block_scales[p].offsets[group % kSuperBlockGroups];
      }
    }
    prefetch_ahead();
    Micro::add_group(totals, x, codes, scales, zeros);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) codes[p] += kFormat.bits * kStepBytes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      store(sums + r * row_stride + p * kPanelColumns,
            Micro::kScalesInEpilogue ? totals[r][p] * scales[p] : totals[r][p]);
    }
  }
}

// Adds the residuals of outlier groups (quantized_microkernels.h), row by row, to the sums of `num_panels` panels.
template <QuantizedFormat kFormat>
__attribute__((noinline)) void add_residuals(const RowTile& tile, int64_t num_rows, const char* const* panels,
                                             int64_t num_panels, const PanelShape& shape, float* sums,
                                             int64_t row_stride) {
  using Micro = QuantizedMicrokernel<kFormat>;
  for (int64_t r = 0; r < num_rows; ++r, sums += row_stride) {
    const int32_t* outliers = tile.outliers_of(r, shape.num_groups);
    const int32_t count = *outliers++;
    if (count == 0) continue;
    for (int64_t p = 0; p < num_panels; ++p) {
      float* to = sums + p * kPanelColumns;
      const char* x = tile.residuals_of(r, shape.num_groups, Micro::kRowBytes);
      Vec totals[1][1] = {{Micro::kScalesInEpilogue ? zero() : load(to)}}, scales[1] = {};
      typename Micro::Zero zeros[1] = {};
      [[maybe_unused]] SuperBlockScales<kFormat.has_super_blocks> block_scales;
      for (int32_t i = 0; i < count; ++i, x += Micro::kRowBytes) {
        const int64_t group = outliers[i], block = group / shape.groups_per_block;
        const char* codes[1] = {panels[p] + block * shape.block_bytes};
        if constexpr (kFormat.has_super_blocks) {
          codes[0] = block_scales.unpack(codes[0]);
          scales[0] = block_scales.scales[group % kSuperBlockGroups];
          zeros[0] = block_scales.offsets[group % kSuperBlockGroups];
        } else {
          read_scales<kFormat>(codes[0], scales[0], zeros[0]);
        }
        codes[0] += (group - block * shape.groups_per_block) * kFormat.bits * kStepBytes;
        Micro::add_group(totals, x, codes, scales, zeros);
      }
      store(to, Micro::kScalesInEpilogue ? fma(totals[0][0], scales[0], load(to)) : totals[0][0]);
    }
  }
}

using QuantizedTileKernel = void (*)(const char*, const char* const*, const PanelShape&, const Prefetch&, float*,
                                     int64_t);
using ResidualsFn = void (*)(const RowTile&, int64_t, const char* const*, int64_t, const PanelShape&, float*, int64_t);
template <class T>
using PackRowsFn = void (*)(const T* const*, int64_t, int64_t, const RowTile&);

using AnyQuantizedMicrokernel = QuantizedMicrokernel<QuantizedFormat{.bits = 8}>;  // all formats tile rows alike

inline constexpr int kQuantizedRows = AnyQuantizedMicrokernel::kRows;
inline constexpr int64_t kGroupRowBytes = AnyQuantizedMicrokernel::kRowBytes;  // of a k-group
inline constexpr bool kHasResiduals = AnyQuantizedMicrokernel::kHasResiduals;

constexpr int quantized_panels_per_tile(int64_t rows) {
  return AnyQuantizedMicrokernel::panels_per_tile(static_cast<int>(rows));
}

// Rows per tile, at most, for a product of `rows` rows. Few tall tiles load each panel's codes fewer times; with more
// rows lower tiles multiply two panels at once, where the microkernel can.
constexpr int64_t quantized_tile_rows(int64_t rows) {
  constexpr int64_t half = (kQuantizedRows + 1) / 2;
  return rows > 4 * kQuantizedRows && quantized_panels_per_tile(half) > 1 ? half : kQuantizedRows;
}

// Tile kernels of a format by number of rows, of quantized_panels_per_tile(rows) panels and of a single one; and the
// kernel that adds residuals, or null.
struct QuantizedTileKernels {
  QuantizedTileKernel multi_panel[kQuantizedRows + 1] = {};
  QuantizedTileKernel single_panel[kQuantizedRows + 1] = {};
  ResidualsFn residuals = nullptr;
};

template <QuantizedFormat kFormat>
struct QuantizedTileKernelsOf : QuantizedTileKernels {
  template <int R>
  constexpr void fill() {
    multi_panel[R] = multiply_quantized<kFormat, R, quantized_panels_per_tile(R)>;
    single_panel[R] = multiply_quantized<kFormat, R, 1>;
    if constexpr (R > 1) fill<R - 1>();
  }
  constexpr QuantizedTileKernelsOf() {
    fill<kQuantizedRows>();
    if constexpr (kHasResiduals) residuals = add_residuals<kFormat>;
  }
};
template <QuantizedFormat kFormat>
inline constexpr QuantizedTileKernelsOf<kFormat> kQuantizedTileKernels;

// Calls f with the format of a layout as a template argument.
template <class F>
AETHER_INLINE auto with_format(const QuantizedLayout& layout, F f) {
  if (layout.has_super_blocks)
    return f.template operator()<QuantizedFormat{.bits = 4, .has_offset = true, .has_super_blocks = true}>();
  if (layout.has_offset) {
    if (layout.bits == 4) return f.template operator()<QuantizedFormat{.bits = 4, .has_offset = true}>();
    return f.template operator()<QuantizedFormat{.bits = 8, .has_offset = true}>();
  }
  if (layout.has_zero_point) {
    if (layout.bits == 2) return f.template operator()<QuantizedFormat{.bits = 2, .has_zero_point = true}>();
    if (layout.bits == 4) return f.template operator()<QuantizedFormat{.bits = 4, .has_zero_point = true}>();
    return f.template operator()<QuantizedFormat{.bits = 8, .has_zero_point = true}>();
  }
  if (layout.is_mxfp4) return f.template operator()<QuantizedFormat{.bits = 4, .is_mxfp4 = true}>();
  if (layout.bits == 1) return f.template operator()<QuantizedFormat{.bits = 1}>();
  if (layout.bits == 4) return f.template operator()<QuantizedFormat{.bits = 4}>();
  if (layout.block == 0) return f.template operator()<QuantizedFormat{.bits = 8, .has_row_scale = true}>();
  return f.template operator()<QuantizedFormat{.bits = 8}>();
}

}  // namespace aether::cpu::AETHER_ISA
