// GEMV of up to eight tokens (decode) with quantised weights, for input rows that are multiples of 16 bytes.
//
// Throughput depends on the bytes in flight and on the instructions per group of codes. The codes of a group are
// contiguous, so a warp copies them unchanged to its ring in shared memory (cp.async), several groups ahead: requests
// cover whole lines and take no registers. Scales are loaded a group ahead. The first loads are issued before the
// kernel waits for its predecessor, since weights do not depend on it.
#pragma once

#include "common/async_copy.cuh"
#include "common/dependent_launch.cuh"
#include "common/projection.cuh"
#include "common/quantized_weight.cuh"

namespace aether {

constexpr int kQuantizedRingBytes = 4096;  // per warp and weight

// The ring of a warp's codes: kStages groups of 16 outputs of each weight.
template <class WeightTile, int kWeights>
struct QuantizedWeightRing {
  static constexpr int kGroupBytes = WeightTile::kTileWords * static_cast<int>(sizeof(uint32_t));
  static constexpr int kPieces = kGroupBytes / kVectorBytes;  // each lane copies at most one of 32
  static constexpr int kMaxStages = kQuantizedRingBytes / kGroupBytes;
  static constexpr int kStages = kMaxStages < 8 ? kMaxStages : 8;

  uint32_t* words;  // this warp's ring

  __device__ __forceinline__ uint32_t* slot(int stage, int weight) const {
    return words + (stage * kWeights + weight) * WeightTile::kTileWords;
  }

  // Issues one commit group of copies, empty beyond the last group.
  __device__ __forceinline__ void begin_copy(const WeightTile (&weight_tiles)[2], int stage, int group,
                                             int num_groups) const {
    if (group < num_groups) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        const uint32_t* from = weight_tiles[weight].tile_codes() + static_cast<int64_t>(group) * WeightTile::kTileWords;
#pragma unroll
        for (int first = 0; first < kPieces; first += kWarpSize) {
          const int piece = first + lane_index();
          if (piece < kPieces) {
            copy_async_16(slot(stage, weight) + piece * 4, from + piece * 4, true);
          }
        }
      }
    }
    commit_copies();
  }
};

// The inputs of eight tokens, chunk by chunk; `x` is aligned. Threads of tokens beyond the last leave their zeros
// unchanged.
template <class T>
struct AlignedInputs {
  const T* row;
  int size;  // 0 for a token beyond the last

  __device__ __forceinline__ AlignedInputs(const Inputs<T>& x, int token)
      : row(x.x + static_cast<int64_t>(token) * x.size + lane_index() % 4 * kFrag8Values),
        size(token < x.num_tokens ? x.size - lane_index() % 4 * kFrag8Values : 0) {}

  // Loads the chunk at k; chunks beyond the last are left unchanged.
  __device__ __forceinline__ void load(Frag8<T>& inputs, int k) const {
    if (k < size) {
      inputs = *reinterpret_cast<const Frag8<T>*>(row + k);
    }
  }

  // Zeroes those of the chunks from k on that are beyond the last.
  template <int kChunks>
  __device__ __forceinline__ void clear_rest(Frag8<T> (&inputs)[kChunks], int k) const {
    if (k + (kChunks - 1) * kChunk >= size) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        inputs[chunk] = k + chunk * kChunk < size ? inputs[chunk] : Frag8<T>{};
      }
    }
  }
};

// A block computes 16 outputs of eight tokens, and its warps split K as in project_skinny, so that the summation order
// of a token does not depend on the batch. Dynamic shared memory: the rings of all warps, then
// float[warps][kWeights][8][17]. `tile` is the block's tile of 16 outputs.
template <class WeightTile, int kWeights>
__device__ __forceinline__ void quantized_gemv(const Results<typename WeightTile::Element>& results,
                                               const Inputs<typename WeightTile::Element>& x,
                                               const typename WeightTile::Params (&params)[kWeights],
                                               int tile = static_cast<int>(blockIdx.y)) {
  using T = typename WeightTile::Element;
  using Ring = QuantizedWeightRing<WeightTile, kWeights>;
  AETHER_DYNAMIC_SHARED(uint4, memory);

  launch_dependents();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + WeightTile::kGroupInputs - 1) / WeightTile::kGroupInputs;
  const WeightTile weight_tiles[2] = {WeightTile(params[0], tile), WeightTile(params[kWeights - 1], tile)};
  constexpr int kRingVectors = kWeights * kQuantizedRingBytes / kVectorBytes;
  const Ring ring{reinterpret_cast<uint32_t*>(memory + warp_index() * kRingVectors)};
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < Ring::kStages; ++stage) {
    ring.begin_copy(weight_tiles, stage, group + stage * num_warps, num_groups);
  }
  typename WeightTile::Group groups[kWeights];
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
    weight_tiles[weight].load_scales(groups[weight], min(group, num_groups - 1));
  }
  wait_for_predecessor();

  const int token = static_cast<int>(blockIdx.x) * kTileTokens;
  const AlignedInputs<T> rows(x, token + lane_index() / 4);
  WarpAccumulator<T, 1> accumulators[kWeights];
  Frag8<T> inputs[WeightTile::kChunks] = {};
#pragma unroll
  for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
    rows.load(inputs[chunk], group * WeightTile::kGroupInputs + chunk * kChunk);
  }
  for (int stage = 0; group < num_groups; stage = stage + 1 < Ring::kStages ? stage + 1 : 0) {
    wait_for_copies<Ring::kStages - 1>();
    __syncwarp();                                             // the copies of other lanes have arrived, too
    const int next = min(group + num_warps, num_groups - 1);  // reloads the last group to avoid a branch
    const int next_k = next * WeightTile::kGroupInputs;
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      typename WeightTile::Group current = groups[weight];
      WeightTile::load_codes(current, ring.slot(stage, weight) + lane_index() * WeightTile::kLaneWords);
      weight_tiles[weight].load_scales(groups[weight], next);
#pragma unroll
      for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
        const Frag8<T> current_inputs[1] = {inputs[chunk]};
        accumulators[weight].add(weight_tiles[weight], current, chunk, current_inputs);
        if (weight == kWeights - 1) {
          rows.load(inputs[chunk], next_k + chunk * kChunk);
        }
      }
    }
    rows.clear_rest(inputs, next_k);
    __syncwarp();  // all lanes have read these slots
    ring.begin_copy(weight_tiles, stage, group + Ring::kStages * num_warps, num_groups);
    group += num_warps;
  }
  using Sums = float[kWeights][kTileTokens * kSumsStride];
  store_sums(results, accumulators, reinterpret_cast<Sums*>(memory + num_warps * kRingVectors), token, tile);
}

}  // namespace aether
