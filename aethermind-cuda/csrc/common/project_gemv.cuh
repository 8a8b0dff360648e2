// GEMV of up to eight tokens (decode) with row-major weights whose rows are multiples of 16 bytes: 16-bit ones, or
// float8 codes. It is memory-bound.
//
// Throughput depends on the bytes in flight per request. A warp copies its weights several groups ahead to its own ring
// in shared memory (cp.async), which takes no registers and no synchronisation between warps; requests cover whole
// 128-byte lines. The first copies are issued before the kernel waits for its predecessor, since weights do not depend
// on it.
#pragma once

#include "common/async_copy.cuh"
#include "common/dense_weight.cuh"
#include "common/dependent_launch.cuh"
#include "common/projection.cuh"

namespace aether {

constexpr int kRingBytes = 8192;  // per warp: three blocks of eight warps fit into 228 KiB

// 16 bytes of a row of a weight.
using WeightPiece = uint4;

// The weight ring of a warp: kStages groups of 16 outputs, 128 bytes each.
template <class WeightTile, int kWeights>
struct WeightRing {
  using Params = typename WeightTile::Params;
  using Stored = typename WeightTile::Stored;
  static constexpr int kRowPieces = 8;
  static constexpr int kPieceInputs = kVectorBytes / static_cast<int>(sizeof(Stored));
  static constexpr int kPieceFrags = kPieceInputs / kFrag8Values;
  static constexpr int kGroupInputs = kRowPieces * kPieceInputs;
  static constexpr int kGroupFrags = kGroupInputs / kChunk;
  static constexpr int kRowsPerCopy = kWarpSize / kRowPieces;
  static constexpr int kCopies = kTileOutputs / kRowsPerCopy;
  static constexpr int kStagePieces = kTileOutputs * kRowPieces;
  static constexpr int kStages = kRingBytes / (kWeights * kStagePieces * kVectorBytes);

  WeightPiece* pieces;
  const Stored* weights[kWeights];  // at the first output of the tile
  int row_size;
  int rows[kCopies];  // offsets of the rows that this thread copies

  __device__ __forceinline__ WeightRing(WeightPiece* pieces, const Params (&params)[kWeights], int tile)
      : pieces(pieces), row_size(WeightTile::row_size(params[0].num_inputs)) {
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      weights[weight] = params[weight].address + static_cast<int64_t>(tile) * kTileOutputs * row_size;
    }
    // Outputs beyond the last read the last one; stores skip them.
    const int last = params[0].num_outputs - 1 - tile * kTileOutputs;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      rows[i] = min(i * kRowsPerCopy + lane_index() / kRowPieces, last) * row_size;
    }
  }

  // The slot of a piece of a row. Odd rows are swizzled: their halves are exchanged, so that concurrent reads (four
  // pieces of two rows) use all banks.
  __device__ __forceinline__ WeightPiece& piece(int stage, int weight, int row, int index) const {
    return pieces[((stage * kWeights + weight) * kTileOutputs + row) * kRowPieces + (index ^ (row % 2 * 4))];
  }

  // This thread's pieces of a group, the first and second half of a row: see mma_gemv.cuh.
  __device__ __forceinline__ const WeightPiece& get(int stage, int weight, int row_half, int half) const {
    return piece(stage, weight, row_half * 8 + lane_index() / 4, half * 4 + lane_index() % 4);
  }

  // Issues one commit group of copies, empty beyond the last group.
  __device__ __forceinline__ void begin_copy(int stage, int group, int num_groups) const {
    if (group < num_groups) {
      const int index = lane_index() % kRowPieces, k = group * kGroupInputs + index * kPieceInputs;
      const bool is_present = k < row_size;
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          WeightPiece& target = piece(stage, weight, i * kRowsPerCopy + lane_index() / kRowPieces, index);
          copy_async_16(&target, weights[weight] + rows[i] + (is_present ? k : 0), is_present);
        }
      }
    }
    commit_copies();
  }
};

// Dynamic shared memory: the rings of all warps, then float[warps][kWeights][8][17]. `tile` is the block's tile of 16
// outputs, `token` its first token.
template <class WeightTile, int kWeights, class Output = Results<typename WeightTile::Element>, class Rows = AllRows>
__device__ __forceinline__ void project_gemv(const Output& results, const Inputs<typename WeightTile::Element, Rows>& x,
                                             const typename WeightTile::Params (&params)[kWeights],
                                             int tile = static_cast<int>(blockIdx.y),
                                             int token = static_cast<int>(blockIdx.x) * kTileTokens) {
  using T = typename WeightTile::Element;
  using Ring = WeightRing<WeightTile, kWeights>;
  using Accumulator = WarpAccumulator<T, 1>;
  AETHER_DYNAMIC_SHARED(WeightPiece, memory);

  launch_dependents();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + Ring::kGroupInputs - 1) / Ring::kGroupInputs;
  constexpr int kPiecesOfWarp = kRingBytes / kVectorBytes;
  const Ring ring(memory + warp_index() * kPiecesOfWarp, params, tile);
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < Ring::kStages; ++stage) {
    ring.begin_copy(stage, group + stage * num_warps, num_groups);
  }
  wait_for_predecessor();

  Accumulator accumulators[kWeights];
  Frag8<T> next_inputs[1][Ring::kGroupFrags];
  Accumulator::template load_group<Ring::kPieceFrags>(next_inputs, x, token, group * Ring::kGroupInputs);
  for (int stage = 0; group < num_groups; group += num_warps, stage = (stage + 1) % Ring::kStages) {
    Frag8<T> inputs[Ring::kGroupFrags];
#pragma unroll
    for (int i = 0; i < Ring::kGroupFrags; ++i) {
      inputs[i] = next_inputs[0][i];
    }
    if (group + num_warps < num_groups) {
      Accumulator::template load_group<Ring::kPieceFrags>(next_inputs, x, token,
                                                          (group + num_warps) * Ring::kGroupInputs);
    }
    wait_for_copies<Ring::kStages - 1>();
    __syncwarp();  // the copies of the warp's other threads have arrived, too
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const WeightPiece pieces[2] = {ring.get(stage, weight, 0, half), ring.get(stage, weight, 1, half)};
#pragma unroll
        for (int i = 0; i < Ring::kPieceFrags; ++i) {
          const Frag8<T> weights[2] = {WeightTile::fragment(pieces[0], i), WeightTile::fragment(pieces[1], i)};
          multiply_chunk(accumulators[weight].sums[0], weights, inputs[half * Ring::kPieceFrags + i]);
        }
      }
    }
    __syncwarp();  // all lanes have read this stage
    ring.begin_copy(stage, group + Ring::kStages * num_warps, num_groups);
  }
  const WeightTile weight_tiles[2] = {WeightTile(params[0], tile), WeightTile(params[kWeights - 1], tile)};
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
    weight_tiles[weight].scale(accumulators[weight].sums[0]);
  }
  using Sums = float[kWeights][kTileTokens * kSumsStride];
  store_sums(results, accumulators, reinterpret_cast<Sums*>(memory + num_warps * kPiecesOfWarp), token, tile);
}

}  // namespace aether
