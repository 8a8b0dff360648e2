// GEMV of up to eight tokens (decode) with quantised weights, for input rows that are multiples of 16 bytes.
//
// Throughput depends on the bytes in flight and on the instructions per group of codes. The codes of a group are
// contiguous, so a warp copies them unchanged to its ring in shared memory (cp.async), several groups ahead: requests
// cover whole lines and take no registers. Scales are loaded a group ahead. The first loads are issued before the
// kernel waits for its predecessor, since weights do not depend on it.
#pragma once

#include "common/async_copy.cuh"
#include "common/overlap.cuh"
#include "common/projection.cuh"
#include "common/quantized_weight.cuh"

namespace aether {

constexpr int kQuantizedRingBytes = 4096;  // per warp and weight

// The ring of a warp's codes: kStages groups of 16 outputs of each weight.
template <class Source, int kWeights>
struct QuantizedWeightRing {
  static constexpr int kGroupBytes = Source::kTileWords * static_cast<int>(sizeof(uint32_t));
  static constexpr int kPieces = kGroupBytes / kVectorBytes;  // each lane copies at most one of 32
  static constexpr int kMostStages = kQuantizedRingBytes / kGroupBytes;
  static constexpr int kStages = kMostStages < 8 ? kMostStages : 8;

  uint32_t* words;  // this warp's ring

  __device__ __forceinline__ uint32_t* slot(int stage, int weight) const {
    return words + (stage * kWeights + weight) * Source::kTileWords;
  }

  // Issues one commit group of copies, empty beyond the last group.
  __device__ __forceinline__ void begin_copy(const Source (&sources)[2], int stage, int group, int num_groups) const {
    if (group < num_groups) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        const uint32_t* from = sources[weight].tile_codes() + static_cast<int64_t>(group) * Source::kTileWords;
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
template <class Source, int kWeights>
__device__ __forceinline__ void quantized_gemv(const Results<typename Source::Element>& results,
                                               const Inputs<typename Source::Element>& x,
                                               const typename Source::Place (&places)[kWeights],
                                               int tile = static_cast<int>(blockIdx.y)) {
  using T = typename Source::Element;
  using Ring = QuantizedWeightRing<Source, kWeights>;
  AETHER_DYNAMIC_SHARED(uint4, memory);

  let_next_kernel_launch();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + Source::kGroupInputs - 1) / Source::kGroupInputs;
  const Source sources[2] = {Source(places[0], tile), Source(places[kWeights - 1], tile)};
  constexpr int kRingVectors = kWeights * kQuantizedRingBytes / kVectorBytes;
  const Ring ring{reinterpret_cast<uint32_t*>(memory + warp_index() * kRingVectors)};
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < Ring::kStages; ++stage) {
    ring.begin_copy(sources, stage, group + stage * num_warps, num_groups);
  }
  typename Source::Group groups[kWeights];
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
    sources[weight].load_scales(groups[weight], min(group, num_groups - 1));
  }
  wait_for_kernel_before();

  const int token = static_cast<int>(blockIdx.x) * kTileTokens;
  const AlignedInputs<T> rows(x, token + lane_index() / 4);
  WarpAccumulator<T, 1> products[kWeights];
  Frag8<T> inputs[Source::kChunks] = {};
#pragma unroll
  for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
    rows.load(inputs[chunk], group * Source::kGroupInputs + chunk * kChunk);
  }
  for (int stage = 0; group < num_groups; stage = stage + 1 < Ring::kStages ? stage + 1 : 0) {
    wait_for_copies<Ring::kStages - 1>();
    __syncwarp();                                             // the copies of other lanes have arrived, too
    const int next = min(group + num_warps, num_groups - 1);  // reloads the last group to avoid a branch
    const int next_k = next * Source::kGroupInputs;
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      typename Source::Group current = groups[weight];
      Source::load_codes(current, ring.slot(stage, weight) + lane_index() * Source::kLaneWords);
      sources[weight].load_scales(groups[weight], next);
#pragma unroll
      for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
        const Frag8<T> own[1] = {inputs[chunk]};
        products[weight].add(sources[weight], current, chunk, own);
        if (weight == kWeights - 1) {
          rows.load(inputs[chunk], next_k + chunk * kChunk);
        }
      }
    }
    rows.clear_rest(inputs, next_k);
    __syncwarp();  // all lanes have read these slots
    ring.begin_copy(sources, stage, group + Ring::kStages * num_warps, num_groups);
    group += num_warps;
  }
  using Sums = float[kWeights][kTileTokens * kSumsStride];
  store_sums(results, products, reinterpret_cast<Sums*>(memory + num_warps * kRingVectors), token, tile);
}

}  // namespace aether
