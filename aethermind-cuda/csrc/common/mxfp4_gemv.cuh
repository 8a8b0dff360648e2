// Products of up to eight tokens with weights in mxfp4. They are memory-bound: a warp copies the codes and exponents of
// its groups of 128 inputs four groups ahead to a ring in shared memory (cp.async), which takes no registers, so that
// several blocks of a multiprocessor have most of their weights under way at once.
#pragma once

#include "common/async_copy.cuh"
#include "common/mxfp4_weight.cuh"
#include "common/projection.cuh"

namespace aether {

// The ring of a warp: groups of 16 outputs, their codes, then their exponents.
template <class T>
struct Mxfp4Ring {
  using WeightTile = Mxfp4Weight<T>;
  static constexpr int kStages = 4;
  static constexpr int kCodePieces = WeightTile::kTileWords * 4 / kVectorBytes;  // of 16 bytes, two for each lane
  static constexpr int kExponentPieces = 4;
  static constexpr int kStagePieces = kCodePieces + kExponentPieces;
  static constexpr int kPieces = kStages * kStagePieces;

  const WeightTile& weight_tile;
  uint4* pieces;

  // Issues one commit group of copies, empty beyond the last group.
  __device__ __forceinline__ void begin_copy(int stage, int group, int num_groups) const {
    if (group < num_groups) {
      uint4* const to = pieces + stage * kStagePieces;
      const auto* codes =
          reinterpret_cast<const uint4*>(weight_tile.tile_codes()) + static_cast<int64_t>(group) * kCodePieces;
#pragma unroll
      for (int i = 0; i < kCodePieces; i += kWarpSize) {
        copy_async_16(to + i + lane_index(), codes + i + lane_index(), true);
      }
      if (lane_index() < kExponentPieces) {
        const auto* exponents = reinterpret_cast<const uint4*>(weight_tile.tile_exponents(group));
        copy_async_16(to + kCodePieces + lane_index(), exponents + lane_index(), true);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ typename WeightTile::Group load(int stage) const {
    const uint4* const from = pieces + stage * kStagePieces;
    const auto* codes = reinterpret_cast<const uint32_t*>(from) + lane_index() * WeightTile::kLaneWords;
    return WeightTile::group_of(codes, reinterpret_cast<const uint2*>(from + kCodePieces)[lane_index() / 4]);
  }
};

// A block computes 16 outputs of up to eight tokens, and its warps split K as in project_skinny. Dynamic shared memory:
// the rings of all warps, then float[warps][1][8][17].
template <class T, class Output, class Rows>
__device__ __forceinline__ void mxfp4_gemv(const Output& results, const Inputs<T, Rows>& x,
                                           const typename Mxfp4Weight<T>::Params& params, int tile) {
  using WeightTile = Mxfp4Weight<T>;
  using Ring = Mxfp4Ring<T>;
  using Accumulator = WarpAccumulator<T, 1>;
  AETHER_DYNAMIC_SHARED(uint4, memory);
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + WeightTile::kGroupInputs - 1) / WeightTile::kGroupInputs;
  const WeightTile weight_tile(params, tile);
  const Ring ring{weight_tile, memory + warp_index() * Ring::kPieces};
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < Ring::kStages; ++stage) ring.begin_copy(stage, group + stage * num_warps, num_groups);

  Accumulator accumulators[1];
  Frag8<T> next_inputs[1][WeightTile::kChunks];
  Accumulator::template load_group(next_inputs, x, 0, group * WeightTile::kGroupInputs);
  for (int stage = 0; group < num_groups; group += num_warps, stage = (stage + 1) % Ring::kStages) {
    Frag8<T> inputs[WeightTile::kChunks];
#pragma unroll
    for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) inputs[chunk] = next_inputs[0][chunk];
    if (group + num_warps < num_groups) {
      Accumulator::template load_group(next_inputs, x, 0, (group + num_warps) * WeightTile::kGroupInputs);
    }
    wait_for_copies<Ring::kStages - 1>();
    __syncwarp();  // the copies of the warp's other lanes have arrived, too
    const typename WeightTile::Group weights = ring.load(stage);
#pragma unroll
    for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
      const Frag8<T> of_chunk[1] = {inputs[chunk]};
      accumulators[0].add(weight_tile, weights, chunk, of_chunk);
    }
    __syncwarp();  // all lanes have read this stage
    ring.begin_copy(stage, group + Ring::kStages * num_warps, num_groups);
  }
  using Sums = float[1][kTileTokens * kSumsStride];
  store_sums(results, accumulators, reinterpret_cast<Sums*>(memory + num_warps * Ring::kPieces), 0, tile);
}

}  // namespace aether
