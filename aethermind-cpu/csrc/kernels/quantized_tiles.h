// Products of many rows with quantised weights on the tile unit. A few panels at a time are dequantised to bfloat16,
// once for several blocks of rows, and multiplied as dense panels are (tile_gemm.h):
//
//   c = Σ x · bf16(s_w (q_w − z))        or, with offsets, Σ x · bf16(s_w q_w + offset)
//
// So activations keep their sixteen bits, where products of bytes round them to eight, and weights are rounded to
// bfloat16. With scales of 32 values this is faster than products of bytes on tiles, whose sums would have to leave the
// tile registers after every 32 values.
#pragma once

#include "kernels/quantized_gemm.h"
#include "kernels/tile_gemm.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kUnpackedBytes = 512 * 1024;  // of dequantised panels: with a tile's rows, in the L2 cache
inline constexpr int64_t kMaxUnpackedPanels = 16;

// Dequantises a panel (quantized_layout.h) to the layout of pack.h: sixteen steps for every k-group.
template <QuantizedFormat kFormat>
__attribute__((noinline)) void dequantize_panel(const char* codes, const PanelShape& shape, char* steps) {
  using Micro = DequantMicrokernel<kFormat>;
  Vec scale{}, zero{};
  [[maybe_unused]] SuperBlockScales<kFormat.has_super_blocks> block_scales;
  for (int64_t group = 0, block_end = 0; group < shape.num_groups; ++group) {
    if (group == block_end) {
      block_end = smaller(group + shape.groups_per_block, shape.num_groups);
      if constexpr (kFormat.has_super_blocks) {
        codes = block_scales.unpack(codes);
      } else {
        read_scales<kFormat>(codes, scale, zero);
      }
    }
    if constexpr (kFormat.has_super_blocks) {
      scale = block_scales.scales[group % kSuperBlockGroups];
      zero = block_scales.offsets[group % kSuperBlockGroups];
    }
#pragma GCC unroll 8
    for (int64_t step = 0; step < kFormat.bits; ++step, codes += kStepBytes) {
#pragma GCC unroll 8
      for (int shift = 0; shift < 8; shift += kFormat.bits) {
#pragma GCC unroll 2
        for (int byte = 0; byte < 32; byte += 16, steps += kStepBytes) {
          store_pairs(steps, Micro::column_of(codes, shift + byte, scale, zero),
                      Micro::column_of(codes, shift + byte + 8, scale, zero));
        }
      }
    }
  }
}

// A weight [N, K] in a quantised format, of which only for_each_block is used: the interface is DenseWeight's.
class DequantizedWeight {
 public:
  explicit DequantizedWeight(const am_tensor& weight) : k_(weight.shape[1]) {
    const char* packed = static_cast<const char*>(weight.data);
    std::memcpy(&layout_, packed, sizeof layout_);
    shape_ = panel_shape(layout_, k_);
    panels_ = packed + kHeaderBytes;
  }

  const char* panel(int64_t index) const { return panels_ + index * shape_.panel_bytes; }

  // A claim is a group of items by a pass of several blocks of rows, which share the dequantised panels.
  template <class PanelFn, class FinishFn>
  AETHER_INLINE void for_each_block(const BFloat16* x, int64_t num_rows, int64_t num_items, int64_t panels_per_item,
                                    const am_team* team, PanelFn panel, FinishFn finish) const {
    const auto dequantize = with_format(layout_, []<QuantizedFormat kFormat>() { return &dequantize_panel<kFormat>; });
    const TileRowBlocks blocks(num_rows);
    const ItemGroups groups(num_items, panels_per_item, 1, team->num_workers);
    const int64_t num_groups = groups.count(), panel_bytes = unpacked_panel_bytes(k_);
    const int64_t items_at_once = panels_at_once(k_, panels_per_item) / panels_per_item;
    char* unpacked = static_cast<char*>(team->scratch);
    float* c = reinterpret_cast<float*>(unpacked + panels_at_once(k_, panels_per_item) * panel_bytes);
    TileScope tiles;
    int64_t ticket = team->claim(team);
    for (int64_t pass = 0; pass < blocks.num_passes(); ++pass) {
      int64_t group = 0, begin = 0;
      for (; ticket < (pass + 1) * num_groups; ticket = team->claim(team)) {
        for (; group < ticket - pass * num_groups; ++group) begin += groups.size(begin);
        const int64_t end = begin + groups.size(begin);
        for (int64_t item = begin; item < end; item += items_at_once) {
          const int64_t items = smaller(items_at_once, end - item), num_panels = items * panels_per_item;
          const char* panels[kMaxPanels];
          for (int64_t p = 0; p < num_panels; ++p) {
            panels[p] = unpacked + p * panel_bytes;
            dequantize(panel(item, items, p), shape_, unpacked + p * panel_bytes);
          }
          for (int64_t block = blocks.first_of(pass); block < blocks.first_of(pass + 1); ++block) {
            tiles.multiply({x, k_, k_, false}, blocks.begin(block), blocks.end(block), panels, num_panels, c);
            finish(blocks.begin(block), blocks.end(block) - blocks.begin(block), item, items, c,
                   num_panels * kPanelColumns);
          }
        }
      }
    }
  }

  static size_t scratch_bytes(int64_t num_rows, int64_t k, int64_t panels_per_item, int32_t) {
    const int64_t num_panels = panels_at_once(k, panels_per_item);
    const int64_t num_sums = smaller(num_rows, kTileRowBlock) * num_panels * kPanelColumns;
    return static_cast<size_t>(num_panels * unpacked_panel_bytes(k) + num_sums * static_cast<int64_t>(sizeof(float)));
  }

 private:
  static int64_t unpacked_panel_bytes(int64_t k) { return ceil_div(k, kGroupK) * kGroupK / 2 * kStepBytes; }
  // A multiple of `panels_per_item`.
  static int64_t panels_at_once(int64_t k, int64_t panels_per_item) {
    const int64_t fitting = smaller(kMaxUnpackedPanels, kUnpackedBytes / larger(1, unpacked_panel_bytes(k)));
    return larger(1, fitting / panels_per_item) * panels_per_item;
  }

  QuantizedLayout layout_;
  PanelShape shape_;
  int64_t k_;
  const char* panels_;
};

}  // namespace aether::cpu::AETHER_ISA
