// What GEMVs of up to eight token-expert pairs have in common: the tile of 16 outputs of a block, and the results of a
// product or, of two weights, of a SwiGLU.
#pragma once

#include "common/expert_products.cuh"

namespace aether {

// The block's tile of 16 outputs of the stack: those that overlap the rows of an expert. A grid has one more than most
// experts need, which is clamped to the stack; its results are not stored.
__device__ __forceinline__ int tile_of_stack(const ExpertProducts& call, int expert) {
  const int num_tiles = (call.num_experts * call.num_outputs + kTileOutputs - 1) / kTileOutputs;
  return min(call.first_tile(expert) + static_cast<int>(blockIdx.y), num_tiles - 1);
}

// The sums of a warp: [kWeights][pairs][17].
template <int kWeights>
using PairSums = float[kWeights][kTileTokens * kSumsStride];

// Adds the sums of all warps in order, and the biases, applies the activation of two weights and stores the results.
template <class T, int kWeights>
__device__ __forceinline__ void store_pair_sums(const ExpertProducts& call, const GatedActivation& activation,
                                                const ExpertTile& tile, const PairRows& rows, int output_tile,
                                                const PairSums<kWeights>* sums) {
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * kTileOutputs; i += static_cast<int>(blockDim.x)) {
    const int pair = i / kTileOutputs;
    const int64_t output = static_cast<int64_t>(output_tile) * kTileOutputs + i % kTileOutputs;
    const int64_t column = output - static_cast<int64_t>(tile.expert) * call.num_outputs;
    if (pair >= tile.count || column < 0 || column >= call.num_outputs) {
      continue;
    }
    float totals[kWeights] = {};
    for (int warp = 0; warp < num_warps; ++warp) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        totals[weight] += sums[warp][weight][pair * kSumsStride + i % kTileOutputs];
      }
    }
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      totals[weight] += bias_of<T>(call, tile, weight, static_cast<int>(column));
    }
    const float value = kWeights == 1 ? totals[0] : activation.of<T>(totals[0], totals[kWeights - 1]);
    static_cast<T*>(call.outs[0])[static_cast<int64_t>(rows.pair_of(pair)) * call.num_outputs + column] =
        from_float<T>(value);
  }
}

}  // namespace aether
