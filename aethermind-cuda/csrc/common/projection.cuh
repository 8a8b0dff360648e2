// Projections x · weightᵀ: skinny (few tokens, a decode step) and tiled (many tokens, prefill), for every weight
// format. A Source is a tile of 16 outputs of a weight: DenseWeight, QuantizedWeight. Adjacent blocks share weights in
// L2.
#pragma once

#include "common/activations.cuh"
#include "common/async_copy.cuh"
#include "common/memory.cuh"
#include "common/mma_gemv.cuh"

namespace aether {

// The output [num_tokens, num_outputs], rounded to T, or float32 where `is_float32`.
template <class T>
struct Results {
  void* out;
  const T* bias;
  int num_tokens;
  int num_outputs;
  bool is_float32;

  __device__ __forceinline__ void store(int token, int output, float value) const {
    if (token >= num_tokens || output >= num_outputs) {
      return;
    }
    if (bias != nullptr) {
      value += to_float(bias[output]);
    }
    const int64_t position = static_cast<int64_t>(token) * num_outputs + output;
    if (is_float32) {
      static_cast<float*>(out)[position] = value;
    } else {
      static_cast<T*>(out)[position] = from_float<T>(value);
    }
  }
};

// The epilogue: the accumulator itself, or SwiGLU of the gate and up accumulators.
template <int kWeights>
__device__ __forceinline__ float epilogue(const float (&sums)[kWeights]) {
  if constexpr (kWeights == 1) {
    return sums[0];
  } else {
    return silu(sums[0]) * sums[1];
  }
}

constexpr int kSumsStride = kTileOutputs + 1;  // padded against bank conflicts

// Reduces the accumulators of a block's warps, applies the epilogue and stores the results. `sums` is shared memory:
// [warps][kWeights][tokens][17].
template <class T, int kTiles, int kWeights>
__device__ __forceinline__ void store_sums(const Results<T>& results,
                                           const WarpAccumulator<T, kTiles> (&products)[kWeights],
                                           float (*sums)[kWeights][kTiles * kTileTokens * kSumsStride], int token,
                                           int tile) {
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
    products[weight].store(sums[warp_index()][weight], kSumsStride);
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  constexpr int kCount = kTiles * kTileTokens * kTileOutputs;
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += static_cast<int>(blockDim.x)) {
    float totals[kWeights] = {};
    for (int warp = 0; warp < num_warps; ++warp) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        totals[weight] += sums[warp][weight][i / kTileOutputs * kSumsStride + i % kTileOutputs];
      }
    }
    results.store(token + i / kTileOutputs, tile * kTileOutputs + i % kTileOutputs, epilogue(totals));
  }
}

// Skinny GEMM: a block computes 16 outputs of kTiles · 8 tokens, and its warps split K among them, so that weights are
// read once and by all multiprocessors. It is memory-bound. K is not split among blocks, so the summation order of a
// token does not depend on the batch. Dynamic shared memory: float[warps][kWeights][tokens][17]. `tile` is the block's
// tile of 16 outputs.
template <class Source, int kTiles, int kWeights>
__device__ __forceinline__ void project_skinny(const Results<typename Source::Element>& results,
                                               const Inputs<typename Source::Element>& x,
                                               const typename Source::Place (&places)[kWeights], float* = nullptr,
                                               int tile = static_cast<int>(blockIdx.y)) {
  using T = typename Source::Element;
  using Partial = float[kWeights][kTiles * kTileTokens * kSumsStride];
  AETHER_DYNAMIC_SHARED(Partial, partial);

  const int token = static_cast<int>(blockIdx.x) * kTiles * kTileTokens;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + Source::kGroupInputs - 1) / Source::kGroupInputs;
  WarpAccumulator<T, kTiles> products[kWeights];
  {
    const auto source = [&](int weight) { return Source(places[weight], tile); };
    const Source sources[2] = {source(0), source(kWeights - 1)};
    typename Source::Group groups[kWeights];
    // Inputs of eight tokens are prefetched a group ahead; those of more tokens are loaded at the start of a group, and
    // float32 inputs, which are too many for registers, chunk by chunk.
    constexpr bool kIsHalf = sizeof(T) < 4;
    constexpr bool kHasInputsAhead = kIsHalf && kTiles == 1;
    using InputGroup = Frag8<T>[kIsHalf ? kTiles : 1][Source::kChunks];
    InputGroup inputs_of_group;
    const auto load = [&](int group) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        groups[weight] = sources[weight].load(group);
      }
      if constexpr (kHasInputsAhead) {
        WarpAccumulator<T, kTiles>::load_group(inputs_of_group, x, token, group * Source::kGroupInputs);
      }
    };
    // Weights are prefetched a group ahead where registers still allow two blocks per multiprocessor.
    constexpr bool kIsAhead = kIsHalf && sizeof(groups) <= 128;
    if (kIsAhead && warp_index() < num_groups) {
      load(warp_index());
    }
    for (int group = warp_index(); group < num_groups; group += num_warps) {
      if (!kIsAhead) {
        load(group);
      }
      typename Source::Group current[kWeights];
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        current[weight] = groups[weight];
      }
      InputGroup current_inputs;
      if constexpr (kHasInputsAhead) {
#pragma unroll
        for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
          current_inputs[0][chunk] = inputs_of_group[0][chunk];
        }
      } else if constexpr (kIsHalf) {
        WarpAccumulator<T, kTiles>::load_group(current_inputs, x, token, group * Source::kGroupInputs);
      }
      if (kIsAhead && group + num_warps < num_groups) {
        load(group + num_warps);
      }
#pragma unroll
      for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
        Frag8<T> inputs[kInputs<T, kTiles>];
        if constexpr (kIsHalf) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            inputs[tile] = current_inputs[tile][chunk];
          }
        } else {
          WarpAccumulator<T, kTiles>::load(inputs, x, token, group * Source::kGroupInputs + chunk * kChunk);
        }
#pragma unroll
        for (int weight = 0; weight < kWeights; ++weight) {
          products[weight].add(sources[weight], current[weight], chunk, inputs);
        }
      }
    }
  }
  store_sums(results, products, partial, token, tile);
}

constexpr int kLargeWarps = 4;
constexpr int kLargeTiles = 2;  // tiles of 16 outputs per warp
constexpr int kStages = 3;

// A multi-stage pipeline of the inputs of kTokens tokens in shared memory: 64 bytes per token and chunk, so that
// fragments are read without bank conflicts.
template <class T, int kTokens, int kChunks>
struct InputStages {
  static constexpr int kGroupInputs = kChunks * kChunk;
  using Stage = Frag8<T>[kChunks][kTokens][4];

  Stage* stages;
  const Inputs<T>& x;
  int token;

  __device__ __forceinline__ void begin_copy(int group) const {
    Stage& stage = stages[group % kStages];
    for (int i = static_cast<int>(threadIdx.x); i < kChunks * kTokens * 4; i += static_cast<int>(blockDim.x)) {
      const int part = i % 4, chunk = i / 4 % kChunks, row = i / 4 / kChunks;
      const int k = group * kGroupInputs + chunk * kChunk + part * kFrag8Values;
      Frag8<T>& target = stage[chunk][row][part];
      if (x.is_aligned) {
        const bool is_present = token + row < x.num_tokens && k < x.size;
        const int64_t position = is_present ? static_cast<int64_t>(token + row) * x.size + k : 0;
        copy_async_16(&target, x.x + position, is_present);
      } else {
        target = x.load(token + row, k);
      }
    }
  }

  __device__ __forceinline__ Frag8<T> get(int group, int chunk, int tile) const {
    return stages[group % kStages][chunk][tile * kTileTokens + lane_index() / 4][lane_index() % 4];
  }
};

// Index into the split-K workspace [gridDim.z][kWeights][num_tokens][num_outputs]; `matrix` combines the first two
// dims.
template <class T>
__device__ __forceinline__ int64_t part_position(const Results<T>& results, int matrix, int token, int output) {
  return (static_cast<int64_t>(matrix) * results.num_tokens + token) * results.num_outputs + output;
}

// Tiled GEMM for many tokens: a block computes kTokens tokens, and each warp 32 outputs of one weight, or 16 of both
// weights of a SwiGLU. Weights go directly to the registers of one warp; inputs are shared by all warps through shared
// memory. Where that makes too few blocks, blocks along z split K and write their sums to `parts` for `sum_parts`.
// Dynamic shared memory: three stages of 64 bytes per token and chunk.
template <class Source, int kTokens, int kWeights>
__device__ __forceinline__ void project_large(const Results<typename Source::Element>& results,
                                              const Inputs<typename Source::Element>& x,
                                              const typename Source::Place (&places)[kWeights],
                                              float* parts = nullptr) {
  using T = typename Source::Element;
  using Stages = InputStages<T, kTokens, Source::kChunks>;
  constexpr int kTiles = kTokens / kTileTokens;
  AETHER_DYNAMIC_SHARED(typename Stages::Stage, memory);

  const Stages stages{memory, x, static_cast<int>(blockIdx.x) * kTokens};
  const int all_groups = (x.size + Source::kGroupInputs - 1) / Source::kGroupInputs;
  const int of_part = (all_groups + static_cast<int>(gridDim.z) - 1) / static_cast<int>(gridDim.z);
  const int first_group = static_cast<int>(blockIdx.z) * of_part;
  const int num_groups = min(first_group + of_part, all_groups);  // end of this split
  const int warp = static_cast<int>(blockIdx.y) * kLargeWarps + warp_index();
  const int first_tile = kWeights == 1 ? warp * kLargeTiles : warp;
  const Source sources[kLargeTiles] = {Source(places[0], first_tile),
                                       Source(places[kWeights - 1], kWeights == 1 ? first_tile + 1 : first_tile)};
  float sums[kLargeTiles][kTiles][4] = {};

#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (first_group + stage < num_groups) {
      stages.begin_copy(first_group + stage);
    }
    commit_copies();
  }
  typename Source::Group next[kLargeTiles];
  const auto load = [&](int group) {
#pragma unroll
    for (int i = 0; i < kLargeTiles; ++i) {
      next[i] = sources[i].load(group);
    }
  };
  // Quantised weights are prefetched a group ahead: they need few registers.
  constexpr bool kIsAhead = Source::kIsScaled;
  if (kIsAhead && first_group < num_groups) {
    load(first_group);
  }
  for (int group = first_group; group < num_groups; ++group) {
    if (!kIsAhead) {
      load(group);
    }
    typename Source::Group weights_of[kLargeTiles];
#pragma unroll
    for (int i = 0; i < kLargeTiles; ++i) {
      weights_of[i] = next[i];
    }
    if (kIsAhead && group + 1 < num_groups) {
      load(group + 1);
    }
    wait_for_copies<kStages - 2>();
    __syncthreads();  // this group has arrived, and the previous one is no longer read
    if (group + kStages - 1 < num_groups) {
      stages.begin_copy(group + kStages - 1);
    }
    commit_copies();
#pragma unroll
    for (int chunk = 0; chunk < Source::kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kLargeTiles; ++i) {
        const Frag8<T> weights[2] = {sources[i].weights(weights_of[i], 0, chunk),
                                     sources[i].weights(weights_of[i], 1, chunk)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const Frag8<T> inputs = stages.get(group, chunk, tile);
          if constexpr (Source::kIsScaled) {
            multiply_scaled(sums[i][tile], weights, inputs, sources[i].scaling(weights_of[i], chunk));
          } else {
            multiply_chunk(sums[i][tile], weights, inputs);
          }
        }
      }
    }
  }
  const int row = lane_index() / 4, column = lane_index() % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = stages.token + tile * kTileTokens + column + i % 2;
      const int output = first_tile * kTileOutputs + row + i / 2 * 8;
      if (gridDim.z > 1) {
#pragma unroll
        for (int which = 0; which < kLargeTiles; ++which) {
          const int place = kWeights == 1 ? output + which * kTileOutputs : output;
          const int matrix = static_cast<int>(blockIdx.z) * kWeights + (kWeights == 1 ? 0 : which);
          if (token < results.num_tokens && place < results.num_outputs) {
            parts[part_position(results, matrix, token, place)] = sums[which][tile][i];
          }
        }
      } else if constexpr (kWeights == 1) {
        results.store(token, output, sums[0][tile][i]);
        results.store(token, output + kTileOutputs, sums[1][tile][i]);
      } else {
        results.store(token, output, epilogue<2>({sums[0][tile][i], sums[1][tile][i]}));
      }
    }
  }
}

// Reduces the split-K sums of project_large in the order of K. Grid: outputs, tokens.
template <class T, int kWeights>
__device__ __forceinline__ void sum_parts(const Results<T>& results, const float* parts, int num_parts) {
  const int output = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), token = static_cast<int>(blockIdx.y);
  if (output >= results.num_outputs) {
    return;
  }
  float totals[kWeights] = {};
#pragma unroll 4
  for (int part = 0; part < num_parts; ++part) {
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      totals[weight] += parts[part_position(results, part * kWeights + weight, token, output)];
    }
  }
  results.store(token, output, epilogue(totals));
}

}  // namespace aether
