// The QKV projections of few tokens in one launch, so that the small k and v weights are read by as many
// multiprocessors as the q weight. See project_skinny; blocks are ordered q, k, v.
#pragma once

#include "common/project_gemv.cuh"
#include "common/projection.cuh"

namespace aether {

// The layout of `_QkvProjection` in kernels/_qkv_projection.py. Arrays are indexed by q, k, v.
struct QkvProjection {
  void* outputs[3];  // [num_tokens, num_outputs or num_kv_outputs]
  const void* weights[3];
  const void* biases[3];  // may be null
  const void* x;          // [num_tokens, num_inputs]
  int num_tokens;
  int num_outputs;
  int num_kv_outputs;
  int num_inputs;
};

// Calls `project(results, inputs, weight, tile, first_output)` for the matrix that the block has a tile of, whose
// outputs begin at `first_output` of all.
template <class T, class Project>
__device__ __forceinline__ void dispatch_qkv(const QkvProjection& call, const Project& project,
                                             int tile_outputs = kTileOutputs) {
  const int query_tiles = (call.num_outputs + tile_outputs - 1) / tile_outputs;
  const int key_tiles = (call.num_kv_outputs + tile_outputs - 1) / tile_outputs;
  const int block = static_cast<int>(blockIdx.y);
  const bool is_query = block < query_tiles, is_key = block < query_tiles + key_tiles;
  // Selected by conditions: a dynamic index would copy the arguments to local memory.
  const auto select = [&](auto* const(&of)[3]) { return is_query ? of[0] : is_key ? of[1] : of[2]; };
  const int tile = block - (is_query ? 0 : is_key ? query_tiles : query_tiles + key_tiles);
  const int num_outputs = is_query ? call.num_outputs : call.num_kv_outputs;
  const Results<T> results{select(call.outputs), static_cast<const T*>(select(call.biases)), call.num_tokens,
                           num_outputs, false};
  const Inputs<T> x(static_cast<const T*>(call.x), call.num_tokens, call.num_inputs);
  const int first_output = (is_query ? 0 : call.num_outputs) + (is_query || is_key ? 0 : call.num_kv_outputs);
  project(results, x, select(call.weights), tile, first_output);
}

// `make_params(weight, num_outputs)` returns the WeightTile's kernel argument.
template <class WeightTile, int kTiles, class MakeParams>
__device__ __forceinline__ void project_qkv(const QkvProjection& call, const MakeParams& make_params) {
  using T = typename WeightTile::Element;
  dispatch_qkv<T>(call, [&](const Results<T>& results, const Inputs<T>& x, const void* weight, int tile, int) {
    project_skinny<WeightTile, kTiles, 1>(results, x, {make_params(weight, results.num_outputs)}, nullptr, tile);
  });
}

// As above by `project_gemv`, for up to eight tokens and weights with 16-byte aligned rows.
template <class WeightTile>
__device__ __forceinline__ void project_qkv_gemv(const QkvProjection& call) {
  using T = typename WeightTile::Element;
  using Stored = typename WeightTile::Stored;
  dispatch_qkv<T>(call, [&](const Results<T>& results, const Inputs<T>& x, const void* weight, int tile, int) {
    project_gemv<WeightTile, 1>(results, x,
                                {{static_cast<const Stored*>(weight), results.num_outputs, call.num_inputs}}, tile);
  });
}

}  // namespace aether
