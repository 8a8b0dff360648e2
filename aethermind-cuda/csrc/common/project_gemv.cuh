// Projections of up to eight tokens (decode) with 16-bit weights in rows of whole 16 bytes: bound by memory.
//
// What counts is how many bytes are under way. Every thread copies the weights that it will multiply to slots of shared
// memory that are its own (cp.async), some groups ahead: that takes no registers, and no thread waits for another. The
// first copies begin before the kernel waits for the one before it, which no weight depends on.
#pragma once

#include "common/async_copy.cuh"
#include "common/dense_weight.cuh"
#include "common/overlap.cuh"
#include "common/projection.cuh"

namespace aether {

constexpr int kRingBytes = 8192;  // of a warp: three blocks of eight warps fill a multiprocessor of 228 KiB

// The weights of a warp on their way: kStages groups of 16 outputs of each weight.
template <class T, int kWeights>
struct WeightRing {
  static constexpr int kChunks = DenseWeight<T>::kChunks;
  static constexpr int kPieces = kWeights * 2 * kChunks;  // of 16 bytes, that a thread has of a group
  static constexpr int kStages = kRingBytes / (kPieces * kWarpSize * kVectorBytes);

  Eight<T>* slots;  // of this thread, a warp's width apart

  __device__ __forceinline__ Eight<T>& slot(int stage, int weight, int half, int chunk) const {
    return slots[((stage * kWeights + weight) * 2 * kChunks + half * kChunks + chunk) * kWarpSize];
  }

  // One group of copies, empty behind the last group.
  __device__ __forceinline__ void begin_copy(const DenseWeight<T> (&sources)[2], int stage, int group,
                                             int num_groups) const {
    if (group < num_groups) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        const DenseWeight<T>& source = sources[weight];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int chunk = 0; chunk < kChunks; ++chunk) {
            const int k = group * source.kGroupInputs + chunk * kChunk + lane_index() % 4 * kEight;
            const bool is_present = k < source.num_inputs;
            copy_async_16(&slot(stage, weight, half, chunk), source.rows[half] + (is_present ? k : 0), is_present);
          }
        }
      }
    }
    commit_copies();
  }
};

// Shared memory: the rings of all warps, then float[warps][kWeights][8][17]. `tile` is the one of the block's 16
// outputs.
template <class T, int kWeights>
__device__ __forceinline__ void project_gemv(const Results<T>& results, const Inputs<T>& x,
                                             const typename DenseWeight<T>::Place (&places)[kWeights],
                                             int tile = static_cast<int>(blockIdx.y)) {
  using Source = DenseWeight<T>;
  using Ring = WeightRing<T, kWeights>;
  AETHER_DYNAMIC_SHARED(Eight<T>, memory);

  let_next_kernel_launch();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + Source::kGroupInputs - 1) / Source::kGroupInputs;
  const Source sources[2] = {Source(places[0], tile), Source(places[kWeights - 1], tile)};
  constexpr int kSlotsOfWarp = kRingBytes / kVectorBytes;
  const Ring ring{memory + warp_index() * kSlotsOfWarp + lane_index()};
  int group = warp_index();
#pragma unroll
  for (int stage = 0; stage < Ring::kStages; ++stage) {
    ring.begin_copy(sources, stage, group + stage * num_warps, num_groups);
  }
  wait_for_kernel_before();

  const int token = static_cast<int>(blockIdx.x) * kTileTokens;
  Products<T, 1> products[kWeights];
  Eight<T> next_inputs[1][Source::kChunks];
  Products<T, 1>::load_group(next_inputs, x, token, group * Source::kGroupInputs);
  for (int stage = 0; group < num_groups; group += num_warps, stage = (stage + 1) % Ring::kStages) {
    Eight<T> inputs[Source::kChunks];
#pragma unroll
    for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
      inputs[chunk] = next_inputs[0][chunk];
    }
    if (group + num_warps < num_groups) {
      Products<T, 1>::load_group(next_inputs, x, token, (group + num_warps) * Source::kGroupInputs);
    }
    wait_for_copies<Ring::kStages - 1>();
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
#pragma unroll
      for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
        const Eight<T> weights[2] = {ring.slot(stage, weight, 0, chunk), ring.slot(stage, weight, 1, chunk)};
        multiply_chunk(products[weight].sums[0], weights, inputs[chunk]);
      }
    }
    // The products above have what was in these slots.
    ring.begin_copy(sources, stage, group + Ring::kStages * num_warps, num_groups);
  }
  using Sums = float[kWeights][kTileTokens * kSumsStride];
  store_sums(results, products, reinterpret_cast<Sums*>(memory + num_warps * kSlotsOfWarp), token, tile);
}

}  // namespace aether
