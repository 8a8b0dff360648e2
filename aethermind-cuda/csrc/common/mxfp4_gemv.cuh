// GEMV of up to eight token-expert pairs with weights in mxfp4, or both of a SwiGLU, for input rows that are multiples
// of 16 bytes.
//
// A warp copies codes and exponents several groups of 128 inputs ahead to its ring in shared memory (cp.async), as in
// quantized_gemv.cuh, and adds up its groups in the accumulators of its tensor core products: bfloat16 holds elements
// times their scale, which the factor that makes a number of an element's bits contains. Where it does not, for float16
// and for scales above 2, scales multiply the float32 products of 32 inputs.
#pragma once

#include "common/async_copy.cuh"
#include "common/expert_gemv.cuh"
#include "common/mxfp4_weight.cuh"

namespace aether {

// A group of 128 inputs of a tile of 16 outputs in shared memory.
struct alignas(kVectorBytes) StagedMxfp4Tile {
  uint32_t codes[kTileOutputs * 16];
  uint32_t exponents[kTileOutputs];
};

constexpr int kMxfp4GemvStages = 3;

// The sums of a warp for one weight.
template <class T>
struct Mxfp4Sums {
  static constexpr int kChunks = 4;
  float sums[4] = {};

  // Adds the products of a group.
  __device__ __forceinline__ void add(const StagedMxfp4Tile& staged, const Frag8<T> (&inputs)[kChunks]) {
    const int lane = lane_index();
    const uint4* const codes = reinterpret_cast<const uint4*>(staged.codes) + lane;
    uint32_t words[2][kChunks];
    reinterpret_cast<uint4&>(words[0]) = codes[0];
    reinterpret_cast<uint4&>(words[1]) = codes[kWarpSize];
    const uint2 both = reinterpret_cast<const uint2*>(staged.exponents)[lane / 4];
    const uint32_t exponents[2] = {both.x, both.y};  // of two chunks each: outputs g and g + 8
    if (std::is_same_v<T, bfloat16> && !__any_sync(kFullWarp, ((both.x | both.y) & 0x80808080u) != 0)) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        // By output: the factors of two chunks.
        const uint32_t factors[2] = {(exponents[pair] & 0x00ff00ffu) * 128 + 0x3f003f00u,
                                     (exponents[pair] >> 8 & 0x00ff00ffu) * 128 + 0x3f003f00u};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int chunk = 2 * pair + i;
          const int half = i == 0 ? 0x1010 : 0x3232;
          multiply_chunk<T>(sums,
                            {elements(words[0][chunk], __byte_perm(factors[0], 0, half)),
                             elements(words[1][chunk], __byte_perm(factors[1], 0, half))},
                            inputs[chunk]);
        }
      }
      return;
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      constexpr uint32_t kOne = kE2m1Factor<T>;
      float part[4];
      multiply_first_chunk<T>(part, {elements(words[0][chunk], kOne), elements(words[1][chunk], kOne)}, inputs[chunk]);
      const uint32_t own = exponents[chunk / 2] >> (chunk % 2 * 16);
      const float scales[2] = {power_of_two(own & 0xff), power_of_two(own >> 8 & 0xff)};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] += scales[i / 2] * part[i];
      }
    }
  }

 private:
  __device__ __forceinline__ static Frag8<T> elements(uint32_t word, uint32_t factor) {
    return {{scaled_e2m1_pair<T, 0>(word, factor), scaled_e2m1_pair<T, 4>(word, factor),
             scaled_e2m1_pair<T, 8>(word, factor), scaled_e2m1_pair<T, 12>(word, factor)}};
  }
};

// Grid: tiles of pairs, tiles of 16 outputs that overlap the rows of an expert. Warps take groups in turn; their sums
// are added in order, so that those of a pair do not depend on the others. Dynamic shared memory: the rings of all
// warps, then float[warps][kWeights][8][17].
template <class T, int kWeights>
__device__ __forceinline__ void multiply_experts_mxfp4_gemv(const ExpertProducts& call,
                                                            const GatedActivation& activation) {
  constexpr int kChunks = Mxfp4Sums<T>::kChunks, kGroup = kChunks * kChunk, kGroupPieces = 64, kExponentPieces = 4;
  AETHER_DYNAMIC_SHARED(unsigned char, memory);
  using Stage = StagedMxfp4Tile[kWeights];

  const ExpertTile tile = call.tile();
  if (tile.count == 0) {
    return;
  }
  const int lane = lane_index(), num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (call.num_inputs + kGroup - 1) / kGroup;
  const int num_tiles = (call.num_experts * call.num_outputs + kTileOutputs - 1) / kTileOutputs;
  const int output_tile = tile_of_stack(call, tile.expert);
  // Places in pieces of 16 bytes.
  const uint32_t first = static_cast<uint32_t>(output_tile) * num_groups;
  const uint32_t code_at = first * kGroupPieces + lane;
  const uint32_t exponent_at =
      (num_tiles * num_groups) * kGroupPieces + first * kExponentPieces + lane % kExponentPieces;
  Stage* const ring = reinterpret_cast<Stage*>(memory) + warp_index() * kMxfp4GemvStages;
  // Issues one commit group of copies, empty beyond the last group.
  const auto begin_copy = [&](int stage, int group) {
    if (group < num_groups) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        const auto* const pieces = static_cast<const uint4*>(weight == 0 ? call.weights[0] : call.weights[1]);
        const uint4* const codes = pieces + (code_at + group * kGroupPieces);
        auto* const to = reinterpret_cast<uint4*>(&ring[stage][weight]);
        copy_async_16(to + lane, codes, true);
        copy_async_16(to + kWarpSize + lane, codes + kWarpSize, true);
        if (lane < kExponentPieces) {
          copy_async_16(to + kGroupPieces + lane, pieces + (exponent_at + group * kExponentPieces), true);
        }
      }
    }
    commit_copies();
  };
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < kMxfp4GemvStages; ++stage) {
    begin_copy(stage, group + stage * num_warps);
  }
  const PairRows rows{call.order, tile.begin, tile.count, call.num_experts, call.pairs_per_row};
  const T* const row = static_cast<const T*>(call.x) + rows.row_of(lane / 4) * call.num_inputs;
  const int own = lane % 4 * kFrag8Values;
  Frag8<T> inputs[kChunks];
  const auto load_inputs = [&](int group) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int k = group * kGroup + chunk * kChunk + own;
      inputs[chunk] = Frag8<T>{};
      if (k < call.num_inputs) {
        inputs[chunk] = *reinterpret_cast<const Frag8<T>*>(row + k);
      }
    }
  };
  load_inputs(group);
  Mxfp4Sums<T> sums[kWeights];
  int stage = 0;
  while (group < num_groups) {
    wait_for_copies<kMxfp4GemvStages - 1>();
    __syncwarp();  // the copies of other lanes have arrived, too
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      sums[weight].add(ring[stage][weight], inputs);
    }
    __syncwarp();  // all lanes have read this stage
    begin_copy(stage, group + kMxfp4GemvStages * num_warps);
    group += num_warps;
    load_inputs(group);
    stage = stage + 1 == kMxfp4GemvStages ? 0 : stage + 1;
  }
  auto* const all =
      reinterpret_cast<PairSums<kWeights>*>(memory + num_warps * kMxfp4GemvStages * static_cast<int>(sizeof(Stage)));
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      all[warp_index()][weight][(lane % 4 * 2 + i % 2) * kSumsStride + lane / 4 + i / 2 * 8] = sums[weight].sums[i];
    }
  }
  __syncthreads();
  store_pair_sums<T, kWeights>(call, activation, tile, rows, output_tile, all);
}

}  // namespace aether
