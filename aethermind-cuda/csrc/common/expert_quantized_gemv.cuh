// GEMV of up to eight token-expert pairs with weights of 8 or 4 bits, or both of a SwiGLU, for input rows that are
// multiples of 16 bytes: quantized_gemv.cuh with the rows of an expert and of its pairs.
#pragma once

#include "common/expert_gemv.cuh"
#include "common/quantized_gemv.cuh"

namespace aether {

// Grid: tiles of pairs, tiles of 16 outputs that overlap the rows of an expert. Dynamic shared memory: the rings of all
// warps, then their PairSums.
template <class T, int kBits, AffineTerm kTerm, int kWeights>
__device__ __forceinline__ void multiply_experts_quantized_gemv(const ExpertProducts& call,
                                                                const GatedActivation& activation) {
  using WeightTile = QuantizedWeight<T, kBits, kTerm>;
  using Staged = StagedGroup<kBits, kTerm>;
  using Products = QuantizedProducts<T, kBits, kTerm, kWeights>;
  constexpr int kStages = kQuantizedStages<kBits, kWeights>;
  constexpr int kStageBytes = kWeights * static_cast<int>(sizeof(Staged)), kRingBytes = kStages * kStageBytes;
  AETHER_DYNAMIC_SHARED(unsigned char, memory);

  const ExpertTile tile = call.tile();
  if (tile.count == 0) {
    return;
  }
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (call.num_inputs + kGroupInputs - 1) / kGroupInputs;
  const int output_tile = tile_of_stack(call, tile.expert);
  unsigned char* const ring = memory + warp_index() * kRingBytes;
  const SharedAddress ring_address = shared_address(ring);
  int group = warp_index();
  const auto source = [&](const void* weight) {
    return QuantizedSource<T, kBits, kTerm>({static_cast<const uint8_t*>(weight), call.num_experts * call.num_outputs,
                                             call.num_inputs, call.num_blocks, call.log2_chunks, kTerm},
                                            output_tile, group);
  };
  QuantizedSource<T, kBits, kTerm> sources[2] = {source(call.weights[0]), source(call.weights[kWeights - 1])};
  // Issues one commit group of copies, empty beyond the last group.
  const auto begin_copy = [&](int offset, int group) {
    if (group < num_groups) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        sources[weight].copy(ring_address + offset + weight * static_cast<int>(sizeof(Staged)), group, num_warps);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    begin_copy(stage * kStageBytes, group + stage * num_warps);
  }
  const PairRows rows{call.order, tile.begin, tile.count, call.num_experts, call.pairs_per_row};
  // Four lanes have a pair, and each row is the only one of its inputs.
  const T* const row = static_cast<const T*>(call.x) + rows.row_of(lane_index() / 4) * call.num_inputs;
  const AlignedInputs<T> pair(Inputs<T>(row, 1, call.num_inputs), 0);
  const bool is_chunk_block = call.log2_chunks == 0;
  Products products({call.num_inputs, call.num_pairs, call.num_outputs, call.num_blocks});
  Frag8<T> inputs[kGroupChunks];
  pair.load_group(inputs, group * kGroupInputs);
  for (int offset = 0; group < num_groups; group += num_warps) {
    wait_for_copies<kStages - 1>();
    __syncwarp();  // the copies of other lanes have arrived, too
    const int next_k = (group + num_warps) * kGroupInputs;
    const bool has_next = pair.has_group(next_k);
    typename Products::Bases bases = {};
    products.begin(bases, inputs);
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      typename WeightTile::Group staged;
      reinterpret_cast<const Staged*>(ring + offset)[weight].template load<WeightTile>(staged, is_chunk_block);
      if (weight == kWeights - 1) {
        __syncwarp();  // all lanes have read this stage
        begin_copy(offset, group + kStages * num_warps);
      }
      products.add(weight, staged, inputs, bases, [&](int chunk) {
        if (weight == kWeights - 1 && has_next) {
          pair.load(inputs[chunk], next_k, chunk);
        }
      });
    }
    pair.load_rest(inputs, next_k);
    offset = offset + kStageBytes < kRingBytes ? offset + kStageBytes : 0;
  }
  auto* const sums = reinterpret_cast<PairSums<kWeights>*>(memory + num_warps * kRingBytes);
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
    products.sums[weight].store(sums[warp_index()][weight], kSumsStride);
  }
  __syncthreads();
  store_pair_sums<T, kWeights>(call, activation, tile, rows, output_tile, sums);
}

}  // namespace aether
