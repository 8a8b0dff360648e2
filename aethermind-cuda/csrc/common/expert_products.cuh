// Products of rows with the weights of their experts, for mixtures of experts.
//
// A token-expert pair is one of the A experts of a token: pair t · A + a is token t with expert ids[t, a]. The weights
// of all experts are one stack [num_experts · N, K] in any weight format, of which a block reads the tiles of 16
// outputs that overlap its expert's N rows; results of other rows are not stored.
//
// The pairs are sorted by expert (`sort_experts.cu`; vLLM: moe_align_block_size) into tiles of one expert, on the
// device: the host knows their number only. Few pairs are not sorted: each is a tile of its own.
//
// The heads of linear_per_head are experts of every token, in the same order, so their pairs need no sorting.
#pragma once

#include "common/activations.cuh"
#include "common/memory.cuh"
#include "common/project_gemv.cuh"
#include "common/projection.cuh"

namespace aether {

// The pairs of one expert: order[begin … begin + count - 1], or pair `begin` itself where pairs are not sorted.
struct ExpertTile {
  int expert;
  int begin;
  int count;  // 0: no work
};

// The layout of `_ExpertProducts` in kernels/_expert_products.py.
struct ExpertProducts {
  void* outs[2];           // [T, A, N], one for each weight
  const void* weights[2];  // [num_experts · N, K]
  const void* biases[2];   // [num_experts · N], may be null
  const void* x;           // [T, K] or [T, A, K]
  const int* ids;          // [T, A]; null for heads: pair t · H + h is head h
  const int* order;        // [T · A], null where pairs are not sorted
  const ExpertTile* tiles;
  int num_pairs;      // T · A
  int tile_pairs;     // pairs of a tile of one head
  int pairs_per_row;  // A where x is [T, K], otherwise 1
  int num_experts;
  int num_outputs;  // N
  int num_inputs;   // K
  int num_blocks;   // of quantised weights: see QuantizedWeight::Params
  int log2_chunks;
  int term;

  __device__ __forceinline__ ExpertTile tile(int index = static_cast<int>(blockIdx.x)) const {
    if (ids == nullptr) {
      const int num_tokens = num_pairs / num_experts;
      const int tiles_of_head = (num_tokens + tile_pairs - 1) / tile_pairs;
      const int head = index / tiles_of_head, first = index % tiles_of_head * tile_pairs;
      return {head, first * num_experts + head, min(tile_pairs, num_tokens - first)};
    }
    return order == nullptr ? ExpertTile{checked_index(ids[index], num_experts), index, 1} : tiles[index];
  }

  // The first tile of 16 outputs that has rows of an expert.
  __device__ __forceinline__ int first_tile(int expert) const {
    return static_cast<int>(static_cast<int64_t>(expert) * num_outputs / kTileOutputs);
  }
};

// Item t of a tile is pair order[begin + t], or begin + t · stride where pairs are not sorted. Its inputs are the row
// of its token, or a row of its own. Items beyond the last one repeat it.
struct PairRows {
  const int* order;
  int begin;
  int count;
  int stride;
  int pairs_per_row;

  __device__ __forceinline__ int pair_of(int token) const {
    token = min(token, count - 1);
    return order == nullptr ? begin + token * stride : order[begin + token];
  }
  __device__ __forceinline__ int64_t row_of(int token) const { return pair_of(token) / pairs_per_row; }
};

// The rows of the pairs of a tile.
__device__ __forceinline__ PairRows rows_of(const ExpertProducts& call, const ExpertTile& tile) {
  return {call.order, tile.begin, tile.count, call.num_experts, call.pairs_per_row};
}

// The bias of an output of a tile's expert, 0 where there is none.
template <class T>
__device__ __forceinline__ float bias_of(const ExpertProducts& call, const ExpertTile& tile, int which, int output) {
  const T* const biases = static_cast<const T*>(which == 0 ? call.biases[0] : call.biases[1]);
  const bool is_present = biases != nullptr && output < call.num_outputs;
  return is_present ? to_float(biases[static_cast<int64_t>(tile.expert) * call.num_outputs + output]) : 0.0f;
}

// g · sigmoid(alpha · g) · (u + up_offset) of gate and up, which are clamped where limit > 0.
struct GatedActivation {
  float alpha;
  float limit;
  float up_offset;

  template <class T>
  __device__ __forceinline__ float of(float gate, float up) const {
    if (limit > 0.0f) {
      gate = fminf(gate, limit);
      up = fminf(fmaxf(up, -limit), limit);
    }
    return gate * sigmoid_for<T>(alpha * gate) * (up + up_offset);
  }
};

// The results of the pairs of a tile, rounded to T. `output` counts rows of the stack.
template <class T>
struct ExpertResults {
  static constexpr bool kMaySplitK = false;
  T* out;
  const T* bias;
  PairRows rows;
  int64_t first_output;
  int num_outputs;

  __device__ __forceinline__ void store(int token, int output, float value) const {
    const int64_t column = output - first_output;
    if (token >= rows.count || column < 0 || column >= num_outputs) {
      return;
    }
    if (bias != nullptr) {
      value += to_float(bias[output]);
    }
    out[static_cast<int64_t>(rows.pair_of(token)) * num_outputs + column] = from_float<T>(value);
  }
};

// Calls project(results, inputs, params of the stack, first tile of outputs) for the tile of pairs blockIdx.x and the
// weight blockIdx.z. `params(weight, num_outputs)` are those of a WeightTile.
template <class T, class Params, class Project>
__device__ __forceinline__ void project_experts(const ExpertProducts& call, const Params& params,
                                                const Project& project) {
  const ExpertTile tile = call.tile();
  if (tile.count == 0) {
    return;
  }
  // Selected, not indexed: arguments that are indexed at run time are copied to local memory.
  const bool is_first = blockIdx.z == 0;
  const PairRows rows{call.order, tile.begin, tile.count, call.num_experts, call.pairs_per_row};
  const ExpertResults<T> results{static_cast<T*>(is_first ? call.outs[0] : call.outs[1]),
                                 static_cast<const T*>(is_first ? call.biases[0] : call.biases[1]), rows,
                                 static_cast<int64_t>(tile.expert) * call.num_outputs, call.num_outputs};
  const Inputs<T, PairRows> x(static_cast<const T*>(call.x), tile.count, call.num_inputs, rows);
  project(results, x, params(is_first ? call.weights[0] : call.weights[1], call.num_experts * call.num_outputs),
          call.first_tile(tile.expert));
}

// A block computes 16 outputs of up to eight pairs, as project_skinny.
template <class WeightTile, class Params>
__device__ __forceinline__ void project_experts_skinny(const ExpertProducts& call, const Params& params) {
  using T = typename WeightTile::Element;
  project_experts<T>(call, params, [](const auto& results, const auto& x, const auto& stack, int first_tile) {
    const typename WeightTile::Params stacks[1] = {stack};
    project_skinny<WeightTile, 1, 1>(results, x, stacks, nullptr, first_tile + static_cast<int>(blockIdx.y), 0);
  });
}

// The same by project_gemv, for row-major weights whose rows are multiples of 16 bytes.
template <class WeightTile, class Params>
__device__ __forceinline__ void project_experts_gemv(const ExpertProducts& call, const Params& params) {
  using T = typename WeightTile::Element;
  project_experts<T>(call, params, [](const auto& results, const auto& x, const auto& stack, int first_tile) {
    const typename WeightTile::Params stacks[1] = {stack};
    project_gemv<WeightTile, 1>(results, x, stacks, first_tile + static_cast<int>(blockIdx.y), 0);
  });
}

// A block computes 128 outputs of up to 64 pairs, as project_tiled.
template <class WeightTile, class Params>
__device__ __forceinline__ void project_experts_tiled(const ExpertProducts& call, const Params& params) {
  using T = typename WeightTile::Element;
  project_experts<T>(call, params, [](const auto& results, const auto& x, const auto& stack, int first_tile) {
    const typename WeightTile::Params stacks[1] = {stack};
    project_tiled<WeightTile, 64, 1>(results, x, stacks, nullptr, 0, first_tile);
  });
}

}  // namespace aether
