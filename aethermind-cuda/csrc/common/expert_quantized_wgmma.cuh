// Products of token-expert pairs with weights of 8 or 4 bits by wgmma: common/quantized_wgmma.cuh for the pairs of a
// tile and the rows of their expert.
#pragma once

#include "common/expert_wgmma.cuh"
#include "common/quantized_wgmma.cuh"

namespace aether {

// Threads of the largest block.
constexpr int kExpertThreads = 512;

// A warp has 16 outputs of a tile of up to kColumns pairs, or, of a SwiGLU, the same 8 outputs of both weights. Grid:
// outputs, tiles of pairs. N is a multiple of 16.
template <class T, int kBits, AffineTerm kTerm, int kColumns, bool kGated>
__device__ __forceinline__ void multiply_experts_quantized(const ExpertProducts& call,
                                                           const GatedActivation& activation) {
  using Products = QuantizedWgmma<T, kBits, kTerm, kColumns, kExpertThreads>;
  AETHER_OPERAND_MEMORY(T, memory);
  const ExpertTile tile = call.tile(static_cast<int>(blockIdx.y));
  if (tile.count == 0) {
    return;
  }
  const PairRows pair_rows = rows_of(call, tile);
  const Products products(memory, static_cast<const T*>(call.x), call.num_inputs, call.log2_chunks == 0);
  products.set_rows([&](int column) { return static_cast<uint32_t>(pair_rows.row_of(column)); });
  const int warp = warp_index(), num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int warp_outputs = kGated ? kTileOutputs / 2 : kTileOutputs;
  const int first_output = static_cast<int>(blockIdx.x) * num_warps * warp_outputs;
  const int tiles_of_expert = call.num_outputs / kTileOutputs;
  const int own = min(first_output / kTileOutputs + (kGated ? warp / 2 : warp), tiles_of_expert - 1);
  const void* const weight = kGated && warp % 2 != 0 ? call.weights[1] : call.weights[0];
  typename Products::Source source({static_cast<const uint8_t*>(weight), call.num_experts * call.num_outputs,
                                    call.num_inputs, call.num_blocks, call.log2_chunks, kTerm},
                                   tile.expert * tiles_of_expert + own, 0);
  float sums[Products::kRegisters];
  const int num_groups = (call.num_inputs + kGroupInputs - 1) / kGroupInputs;
  products.multiply(sums, source, kGated ? StagedRows::of_pair(warp) : StagedRows::of_tile(warp), 0, num_groups);
  store_expert_sums<T, kColumns, kGated>(call, activation, tile, pair_rows, first_output, sums);
}

}  // namespace aether
