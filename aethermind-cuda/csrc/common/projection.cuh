// GEMMs x[T, K] · weight[N, K]ᵀ with float32 accumulators: skinny (few tokens, a decode step) and tiled (many tokens,
// prefill), for every weight format. A WeightTile is the operand of 16 outputs of a weight: DenseWeight or
// QuantizedWeight. Adjacent blocks share weights in L2.
#pragma once

#include "common/activations.cuh"
#include "common/async_copy.cuh"
#include "common/memory.cuh"
#include "common/mma_gemv.cuh"

namespace aether {

// The output [num_tokens, num_outputs], rounded to T, or float32 where `is_float32`.
template <class T>
struct Results {
  static constexpr bool kMaySplitK = true;
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
template <class T, int kTiles, int kWeights, class Output>
__device__ __forceinline__ void store_sums(const Output& results,
                                           const WarpAccumulator<T, kTiles> (&accumulators)[kWeights],
                                           float (*sums)[kWeights][kTiles * kTileTokens * kSumsStride], int token,
                                           int tile) {
#pragma unroll
  for (int weight = 0; weight < kWeights; ++weight) {
    accumulators[weight].store(sums[warp_index()][weight], kSumsStride);
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
// tile of 16 outputs, `token` its first token.
template <class WeightTile, int kTiles, int kWeights, class Output = Results<typename WeightTile::Element>,
          class Rows = AllRows>
__device__ __forceinline__ void project_skinny(const Output& results,
                                               const Inputs<typename WeightTile::Element, Rows>& x,
                                               const typename WeightTile::Params (&params)[kWeights], float* = nullptr,
                                               int tile = static_cast<int>(blockIdx.y),
                                               int token = static_cast<int>(blockIdx.x) * kTiles * kTileTokens) {
  using T = typename WeightTile::Element;
  using Partial = float[kWeights][kTiles * kTileTokens * kSumsStride];
  AETHER_DYNAMIC_SHARED(Partial, partial);

  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + WeightTile::kGroupInputs - 1) / WeightTile::kGroupInputs;
  WarpAccumulator<T, kTiles> accumulators[kWeights];
  {
    const auto weight_tile = [&](int weight) { return WeightTile(params[weight], tile); };
    const WeightTile weight_tiles[2] = {weight_tile(0), weight_tile(kWeights - 1)};
    typename WeightTile::Group groups[kWeights];
    // Inputs of eight tokens are prefetched a group ahead; those of more tokens are loaded at the start of a group, and
    // float32 inputs, which are too many for registers, chunk by chunk.
    constexpr bool kIsHalf = sizeof(T) < 4;
    constexpr bool kPrefetchesInputs = kIsHalf && kTiles == 1;
    using InputGroup = Frag8<T>[kIsHalf ? kTiles : 1][WeightTile::kChunks];
    InputGroup inputs_of_group;
    const auto load = [&](int group) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        groups[weight] = weight_tiles[weight].load(group);
      }
      if constexpr (kPrefetchesInputs) {
        WarpAccumulator<T, kTiles>::load_group(inputs_of_group, x, token, group * WeightTile::kGroupInputs);
      }
    };
    // Weights are prefetched a group ahead where registers still allow two blocks per multiprocessor.
    constexpr bool kPrefetchesWeights = kIsHalf && sizeof(groups) <= 128;
    if (kPrefetchesWeights && warp_index() < num_groups) {
      load(warp_index());
    }
    for (int group = warp_index(); group < num_groups; group += num_warps) {
      if (!kPrefetchesWeights) {
        load(group);
      }
      typename WeightTile::Group current[kWeights];
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        current[weight] = groups[weight];
      }
      InputGroup current_inputs;
      if constexpr (kPrefetchesInputs) {
#pragma unroll
        for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
          current_inputs[0][chunk] = inputs_of_group[0][chunk];
        }
      } else if constexpr (kIsHalf) {
        WarpAccumulator<T, kTiles>::load_group(current_inputs, x, token, group * WeightTile::kGroupInputs);
      }
      if (kPrefetchesWeights && group + num_warps < num_groups) {
        load(group + num_warps);
      }
#pragma unroll
      for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
        Frag8<T> inputs[kInputs<T, kTiles>];
        if constexpr (kIsHalf) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            inputs[tile] = current_inputs[tile][chunk];
          }
        } else {
          WarpAccumulator<T, kTiles>::load(inputs, x, token, group * WeightTile::kGroupInputs + chunk * kChunk);
        }
#pragma unroll
        for (int weight = 0; weight < kWeights; ++weight) {
          accumulators[weight].add(weight_tiles[weight], current[weight], chunk, inputs);
        }
      }
    }
  }
  store_sums(results, accumulators, partial, token, tile);
}

constexpr int kTiledWarps = 4;
constexpr int kTilesPerWarp = 2;  // tiles of 16 outputs per warp
constexpr int kInputStages = 3;

// A multi-stage pipeline of the inputs of kTokens tokens in shared memory: 64 bytes per token and chunk, so that
// fragments are read without bank conflicts.
template <class T, int kTokens, int kChunks, class Rows = AllRows>
struct InputStages {
  static constexpr int kGroupInputs = kChunks * kChunk;
  using Stage = Frag8<T>[kChunks][kTokens][4];

  Stage* stages;
  const Inputs<T, Rows>& x;
  int token;

  __device__ __forceinline__ void begin_copy(int group) const {
    Stage& stage = stages[group % kInputStages];
    for (int i = static_cast<int>(threadIdx.x); i < kChunks * kTokens * 4; i += static_cast<int>(blockDim.x)) {
      const int piece = i % 4, chunk = i / 4 % kChunks, row = i / 4 / kChunks;
      const int k = group * kGroupInputs + chunk * kChunk + piece * kFrag8Values;
      Frag8<T>& target = stage[chunk][row][piece];
      if (x.is_aligned) {
        const bool is_present = token + row < x.num_tokens && k < x.size;
        const int64_t position = is_present ? x.row_of(token + row) * x.size + k : 0;
        copy_async_16(&target, x.x + position, is_present);
      } else {
        target = x.load(token + row, k);
      }
    }
  }

  __device__ __forceinline__ Frag8<T> get(int group, int chunk, int tile) const {
    return stages[group % kInputStages][chunk][tile * kTileTokens + lane_index() / 4][lane_index() % 4];
  }
};

// Index into the split-K workspace [gridDim.z][kWeights][num_tokens][num_outputs]; `matrix` combines the first two
// dims.
template <class T>
__device__ __forceinline__ int64_t partial_index(const Results<T>& results, int matrix, int token, int output) {
  return (static_cast<int64_t>(matrix) * results.num_tokens + token) * results.num_outputs + output;
}

// Tiled GEMM for many tokens: a block computes kTokens tokens, and each warp 32 outputs of one weight, or 16 of both
// weights of a SwiGLU. Weights go directly to the registers of one warp; inputs are shared by all warps through shared
// memory. Where that makes too few blocks, blocks along z split K and write their sums to `partials` for
// `split_k_reduce`. Dynamic shared memory: three stages of 64 bytes per token and chunk. `token` is the block's first
// token, `base_tile` the first tile of 16 outputs of the grid.
template <class WeightTile, int kTokens, int kWeights, class Output = Results<typename WeightTile::Element>,
          class Rows = AllRows>
__device__ __forceinline__ void project_tiled(const Output& results,
                                              const Inputs<typename WeightTile::Element, Rows>& x,
                                              const typename WeightTile::Params (&params)[kWeights],
                                              float* partials = nullptr,
                                              int token = static_cast<int>(blockIdx.x) * kTokens, int base_tile = 0) {
  using T = typename WeightTile::Element;
  using Stages = InputStages<T, kTokens, WeightTile::kChunks, Rows>;
  constexpr int kTiles = kTokens / kTileTokens;
  AETHER_DYNAMIC_SHARED(typename Stages::Stage, memory);

  const Stages stages{memory, x, token};
  const int all_groups = (x.size + WeightTile::kGroupInputs - 1) / WeightTile::kGroupInputs;
  const int num_splits = Output::kMaySplitK ? static_cast<int>(gridDim.z) : 1;
  const int groups_per_split = (all_groups + num_splits - 1) / num_splits;
  const int first_group = (Output::kMaySplitK ? static_cast<int>(blockIdx.z) : 0) * groups_per_split;
  const int num_groups = min(first_group + groups_per_split, all_groups);  // end of this split
  const int warp = static_cast<int>(blockIdx.y) * kTiledWarps + warp_index();
  const int first_tile = base_tile + (kWeights == 1 ? warp * kTilesPerWarp : warp);
  const WeightTile weight_tiles[kTilesPerWarp] = {
      WeightTile(params[0], first_tile), WeightTile(params[kWeights - 1], kWeights == 1 ? first_tile + 1 : first_tile)};
  float sums[kTilesPerWarp][kTiles][4] = {};

#pragma unroll
  for (int stage = 0; stage < kInputStages - 1; ++stage) {
    if (first_group + stage < num_groups) {
      stages.begin_copy(first_group + stage);
    }
    commit_copies();
  }
  typename WeightTile::Group next[kTilesPerWarp];
  const auto load = [&](int group) {
#pragma unroll
    for (int i = 0; i < kTilesPerWarp; ++i) {
      next[i] = weight_tiles[i].load(group);
    }
  };
  // Quantised weights are prefetched a group ahead: they need few registers.
  constexpr bool kPrefetchesWeights = WeightTile::kIsScaled;
  if (kPrefetchesWeights && first_group < num_groups) {
    load(first_group);
  }
  for (int group = first_group; group < num_groups; ++group) {
    if (!kPrefetchesWeights) {
      load(group);
    }
    typename WeightTile::Group weights_of[kTilesPerWarp];
#pragma unroll
    for (int i = 0; i < kTilesPerWarp; ++i) {
      weights_of[i] = next[i];
    }
    if (kPrefetchesWeights && group + 1 < num_groups) {
      load(group + 1);
    }
    wait_for_copies<kInputStages - 2>();
    __syncthreads();  // this group has arrived, and the previous one is no longer read
    if (group + kInputStages - 1 < num_groups) {
      stages.begin_copy(group + kInputStages - 1);
    }
    commit_copies();
#pragma unroll
    for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kTilesPerWarp; ++i) {
        const Frag8<T> weights[2] = {weight_tiles[i].weights(weights_of[i], 0, chunk),
                                     weight_tiles[i].weights(weights_of[i], 1, chunk)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const Frag8<T> inputs = stages.get(group, chunk, tile);
          if constexpr (WeightTile::kIsScaled) {
            multiply_scaled(sums[i][tile], weights, inputs, weight_tiles[i].scaling(weights_of[i], chunk));
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
      const int token_of_sum = stages.token + tile * kTileTokens + column + i % 2;
      const int output = first_tile * kTileOutputs + row + i / 2 * 8;
      if constexpr (Output::kMaySplitK) {
        if (gridDim.z > 1) {
#pragma unroll
          for (int warp_tile = 0; warp_tile < kTilesPerWarp; ++warp_tile) {
            const int column = kWeights == 1 ? output + warp_tile * kTileOutputs : output;
            const int matrix = static_cast<int>(blockIdx.z) * kWeights + (kWeights == 1 ? 0 : warp_tile);
            if (token_of_sum < results.num_tokens && column < results.num_outputs) {
              partials[partial_index(results, matrix, token_of_sum, column)] = sums[warp_tile][tile][i];
            }
          }
          continue;
        }
      }
      if constexpr (kWeights == 1) {
        results.store(token_of_sum, output, sums[0][tile][i]);
        results.store(token_of_sum, output + kTileOutputs, sums[1][tile][i]);
      } else {
        results.store(token_of_sum, output, epilogue<2>({sums[0][tile][i], sums[1][tile][i]}));
      }
    }
  }
}

// Reduces the split-K sums of project_tiled in the order of K. Grid: outputs, tokens.
template <class T, int kWeights>
__device__ __forceinline__ void split_k_reduce(const Results<T>& results, const float* partials, int num_splits,
                                               int block = static_cast<int>(blockIdx.x),
                                               int token = static_cast<int>(blockIdx.y)) {
  const int output = block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  if (output >= results.num_outputs) {
    return;
  }
  float totals[kWeights] = {};
#pragma unroll 4
  for (int split = 0; split < num_splits; ++split) {
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      totals[weight] += partials[partial_index(results, split * kWeights + weight, token, output)];
    }
  }
  results.store(token, output, epilogue(totals));
}

}  // namespace aether
