// Products of token-expert pairs with the weights of their experts by wgmma, with swapped roles: 64 outputs are the
// rows of a product and up to 128 pairs its columns. Rows of gate and up alternate in groups of 8, so that a thread
// holds both terms of its results.
#pragma once

#include "common/async_copy.cuh"
#include "common/expert_products.cuh"
#include "common/wgmma.cuh"

namespace aether {

constexpr int kWgmmaPairs = 128;  // of a tile
constexpr int kWgmmaThreads = 256;

// The experts whose dequantised weights are in memory; tiles of other experts are skipped.
struct ExpertRange {
  int first;
  int count;

  __device__ __forceinline__ bool has(int expert) const { return expert >= first && expert < first + count; }
};

// Adds the biases to the sums of a tile of kPairs pairs, applies the activation and stores the results. Thread
// t = 32 w + 4 g + i holds rows g and g + 8 of its warp's 16 for pairs 8 j + 2 i and the next one. Lanes of
// neighbouring g exchange values, so that each stores two outputs of one pair.
template <class T, int kPairs, bool kGated>
__device__ __forceinline__ void store_expert_sums(const ExpertProducts& call, const GatedActivation& activation,
                                                  const ExpertTile& tile, const PairRows& pair_rows, int first_output,
                                                  const float (&sums)[kPairs / 2]) {
  constexpr int kHalves = kGated ? 1 : 2;
  const int lane = lane_index(), g = lane / 4;
  const bool is_odd = g % 2 != 0;
  const int output = first_output + warp_index() * (kGated ? 8 : 16) + g;
  const float bias[2] = {bias_of<T>(call, tile, 0, output),
                         kGated ? bias_of<T>(call, tile, 1, output) : bias_of<T>(call, tile, 0, output + 8)};
  T* const out = static_cast<T*>(call.outs[0]);
#pragma unroll
  for (int j = 0; j < kPairs / 8; ++j) {
    const int column = 8 * j + 2 * (lane % 4) + is_odd;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float values[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float first = sums[4 * j + e], second = sums[4 * j + 2 + e];
        values[e] = kGated ? activation.of<T>(first + bias[0], second + bias[1])
                           : (h == 0 ? first + bias[0] : second + bias[1]);
      }
      const float other = __shfl_xor_sync(kFullWarp, is_odd ? values[0] : values[1], 4);
      const int even = (output & ~1) + 8 * h;
      if (column < tile.count && even < call.num_outputs) {
        const Vector<T, 2> pair{from_float<T>(is_odd ? other : values[0]), from_float<T>(is_odd ? values[1] : other)};
        pair.store(out + static_cast<int64_t>(pair_rows.pair_of(column)) * call.num_outputs + even);
      }
    }
  }
}

// A block computes 128 rows of weights for one tile of pairs: 128 outputs, or 64 of a SwiGLU.
template <class T, int kPairs, bool kGated>
struct ExpertWgmma {
  static constexpr int kRows = 128;
  static constexpr int kTileOutputs = kGated ? kRows / 2 : kRows;
  static constexpr int kStages = kPairs == kWgmmaPairs ? 3 : 4;  // 96 KiB: two blocks per multiprocessor
  static constexpr int kStagePieces = (kRows + kPairs) * kPiecesOfRow;
  static constexpr int kRowsPerPass = kWgmmaThreads / kPiecesOfRow;
  static constexpr int kWeightPasses = kRows / kRowsPerPass;
  static constexpr int kInputPasses = kPairs / kRowsPerPass;
  static constexpr int kRegisters = kPairs / 2;
  using Piece = Vector<T>;

  const ExpertProducts& call;
  const GatedActivation& activation;
  ExpertTile tile;
  PairRows pair_rows;
  Piece* target;         // of this thread's first copy
  const Piece* weights;  // of the expert: gate or up
  const Piece* inputs;
  uint32_t weight_at[kWeightPasses];  // the pieces that this thread copies of the first 64 inputs
  uint32_t input_at[kInputPasses];
  int first_output;

  // `index` is that of the tile's expert among those in memory.
  __device__ __forceinline__ ExpertWgmma(const ExpertProducts& call, const GatedActivation& activation,
                                         const ExpertTile& tile, int index, Piece* memory)
      : call(call),
        activation(activation),
        tile(tile),
        pair_rows{call.order, tile.begin, tile.count, call.num_experts, call.pairs_per_row},
        inputs(static_cast<const Piece*>(call.x)),
        first_output(static_cast<int>(blockIdx.x) * kTileOutputs) {
    const int row = static_cast<int>(threadIdx.x) / kPiecesOfRow, piece = static_cast<int>(threadIdx.x) % kPiecesOfRow;
    const int pieces = call.num_inputs / Piece::size;
    const void* const stack = kGated && row % 16 >= 8 ? call.weights[1] : call.weights[0];
    weights = static_cast<const Piece*>(stack) + static_cast<int64_t>(index) * call.num_outputs * pieces;
    target = memory + swizzled_piece(row, piece);
#pragma unroll
    for (int i = 0; i < kWeightPasses; ++i) {
      const int r = row + i * kRowsPerPass, output = first_output + (kGated ? r / 16 * 8 + r % 8 : r);
      weight_at[i] = static_cast<uint32_t>(min(output, call.num_outputs - 1) * pieces + piece);
    }
#pragma unroll
    for (int i = 0; i < kInputPasses; ++i) {
      input_at[i] = static_cast<uint32_t>(pair_rows.row_of(row + i * kRowsPerPass) * pieces + piece);
    }
  }

  // Pairs beyond the last one are zeros.
  __device__ __forceinline__ void copy(int step, int stage) const {
    Piece* const to = target + stage * kStagePieces;
    const int first = step * kPiecesOfRow;
#pragma unroll
    for (int i = 0; i < kWeightPasses; ++i) {
      copy_async_16(to + i * kRowsPerPass * kPiecesOfRow, weights + first + weight_at[i], true);
    }
#pragma unroll
    for (int i = 0; i < kInputPasses; ++i) {
      const bool is_present = static_cast<int>(threadIdx.x) / kPiecesOfRow + i * kRowsPerPass < tile.count;
      copy_async_16(to + (kRows + i * kRowsPerPass) * kPiecesOfRow, inputs + first + input_at[i], is_present);
    }
  }

  __device__ __forceinline__ void run(const Piece* memory) const {
    const int num_steps = call.num_inputs / kTileDepth;
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < num_steps) {
        copy(stage, stage);
      }
      commit_copies();
    }
    const Piece* const rows = memory + warp_index() / 4 * 64 * kPiecesOfRow;
    float sums[kRegisters];
    int stage = 0, next_stage = kStages - 1;
    for (int step = 0; step < num_steps; ++step) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      publish_operands();
      begin_products();
      multiply_tiles<T>(sums, rows + stage * kStagePieces, memory + stage * kStagePieces + kRows * kPiecesOfRow,
                        step > 0);
      commit_products();
      if (step + kStages - 1 < num_steps) {
        copy(step + kStages - 1, next_stage);
      }
      commit_copies();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
      wait_for_products<0>();
    }
    store_expert_sums<T, kPairs, kGated>(call, activation, tile, pair_rows, first_output, sums);
  }
};

// Grid: tiles of outputs, tiles of pairs. K is a multiple of 64, N of 2, and rows are 16-byte aligned.
template <class T, bool kGated>
__device__ __forceinline__ void multiply_experts_wgmma(const ExpertProducts& call, const GatedActivation& activation,
                                                       const ExpertRange& range) {
  AETHER_OPERAND_MEMORY(T, memory);
  const ExpertTile tile = call.tile(static_cast<int>(blockIdx.y));
  if (tile.count == 0 || !range.has(tile.expert)) {
    return;
  }
  const int index = tile.expert - range.first;
  if (tile.count <= kWgmmaPairs / 2) {
    ExpertWgmma<T, kWgmmaPairs / 2, kGated>(call, activation, tile, index, memory).run(memory);
  } else {
    ExpertWgmma<T, kWgmmaPairs, kGated>(call, activation, tile, index, memory).run(memory);
  }
}

}  // namespace aether
