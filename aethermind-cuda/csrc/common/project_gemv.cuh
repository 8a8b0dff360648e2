// GEMV of up to eight tokens (decode) with 16-bit weights whose rows are multiples of 16 bytes. It is memory-bound.
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

// The weight ring of a warp: kStages groups of 16 outputs, 128 bytes each.
template <class T, int kWeights>
struct WeightRing {
  using Params = typename DenseWeight<T>::Params;
  static constexpr int kChunks = DenseWeight<T>::kChunks;
  static constexpr int kGroupInputs = DenseWeight<T>::kGroupInputs;
  static constexpr int kRowPieces = kGroupInputs / kFrag8Values;  // eight pieces of 16 bytes
  static constexpr int kRowsPerCopy = kWarpSize / kRowPieces;
  static constexpr int kCopies = kTileOutputs / kRowsPerCopy;
  static constexpr int kStagePieces = kTileOutputs * kRowPieces;
  static constexpr int kStages = kRingBytes / (kWeights * kStagePieces * kVectorBytes);
  static_assert(kRowPieces == 8 && sizeof(Frag8<T>) == kVectorBytes);

  Frag8<T>* pieces;
  const T* weights[kWeights];  // at the first output of the tile
  int num_inputs;
  int rows[kCopies];  // offsets of the rows that this thread copies

  __device__ __forceinline__ WeightRing(Frag8<T>* pieces, const Params (&params)[kWeights], int tile)
      : pieces(pieces), num_inputs(params[0].num_inputs) {
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      weights[weight] = params[weight].address + static_cast<int64_t>(tile) * kTileOutputs * num_inputs;
    }
    // Outputs beyond the last read the last one; stores skip them.
    const int last = params[0].num_outputs - 1 - tile * kTileOutputs;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      rows[i] = min(i * kRowsPerCopy + lane_index() / kRowPieces, last) * num_inputs;
    }
  }

  // The slot of a piece of a row. Odd rows are swizzled: their halves are exchanged, so that concurrent reads (four
  // pieces of two rows) use all banks.
  __device__ __forceinline__ Frag8<T>& piece(int stage, int weight, int row, int index) const {
    return pieces[((stage * kWeights + weight) * kTileOutputs + row) * kRowPieces + (index ^ (row % 2 * 4))];
  }

  // Loads this thread's A fragments: see mma_gemv.cuh.
  __device__ __forceinline__ Frag8<T> get(int stage, int weight, int half, int chunk) const {
    return piece(stage, weight, half * 8 + lane_index() / 4, chunk * 4 + lane_index() % 4);
  }

  // Issues one commit group of copies, empty beyond the last group.
  __device__ __forceinline__ void begin_copy(int stage, int group, int num_groups) const {
    if (group < num_groups) {
      const int index = lane_index() % kRowPieces, k = group * kGroupInputs + index * kFrag8Values;
      const bool is_present = k < num_inputs;
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          Frag8<T>& target = piece(stage, weight, i * kRowsPerCopy + lane_index() / kRowPieces, index);
          copy_async_16(&target, weights[weight] + rows[i] + (is_present ? k : 0), is_present);
        }
      }
    }
    commit_copies();
  }
};

// Dynamic shared memory: the rings of all warps, then float[warps][kWeights][8][17]. `tile` is the block's tile of 16
// outputs, `token` its first token.
template <class T, int kWeights, class Output = Results<T>, class Rows = AllRows>
__device__ __forceinline__ void project_gemv(const Output& results, const Inputs<T, Rows>& x,
                                             const typename DenseWeight<T>::Params (&params)[kWeights],
                                             int tile = static_cast<int>(blockIdx.y),
                                             int token = static_cast<int>(blockIdx.x) * kTileTokens) {
  using WeightTile = DenseWeight<T>;
  using Ring = WeightRing<T, kWeights>;
  AETHER_DYNAMIC_SHARED(Frag8<T>, memory);

  launch_dependents();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + WeightTile::kGroupInputs - 1) / WeightTile::kGroupInputs;
  constexpr int kPiecesOfWarp = kRingBytes / kVectorBytes;
  const Ring ring(memory + warp_index() * kPiecesOfWarp, params, tile);
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < Ring::kStages; ++stage) {
    ring.begin_copy(stage, group + stage * num_warps, num_groups);
  }
  wait_for_predecessor();

  WarpAccumulator<T, 1> accumulators[kWeights];
  Frag8<T> next_inputs[1][WeightTile::kChunks];
  WarpAccumulator<T, 1>::load_group(next_inputs, x, token, group * WeightTile::kGroupInputs);
  for (int stage = 0; group < num_groups; group += num_warps, stage = (stage + 1) % Ring::kStages) {
    Frag8<T> inputs[WeightTile::kChunks];
#pragma unroll
    for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
      inputs[chunk] = next_inputs[0][chunk];
    }
    if (group + num_warps < num_groups) {
      WarpAccumulator<T, 1>::load_group(next_inputs, x, token, (group + num_warps) * WeightTile::kGroupInputs);
    }
    wait_for_copies<Ring::kStages - 1>();
    __syncwarp();  // the copies of the warp's other threads have arrived, too
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
#pragma unroll
      for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
        const Frag8<T> weights[2] = {ring.get(stage, weight, 0, chunk), ring.get(stage, weight, 1, chunk)};
        multiply_chunk(accumulators[weight].sums[0], weights, inputs[chunk]);
      }
    }
    __syncwarp();  // all lanes have read this stage
    ring.begin_copy(stage, group + Ring::kStages * num_warps, num_groups);
  }
  using Sums = float[kWeights][kTileTokens * kSumsStride];
  store_sums(results, accumulators, reinterpret_cast<Sums*>(memory + num_warps * kPiecesOfWarp), token, tile);
}

}  // namespace aether
