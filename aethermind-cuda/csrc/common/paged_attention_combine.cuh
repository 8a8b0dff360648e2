// The combine kernel of split-KV attention (Flash-Decoding): merges the partial results of queries whose keys were
// split among blocks. The first blocks merge rows of the decode kernel, a block per row since there are many partials;
// the others merge rows of the prefill kernel, a warp per row.
#pragma once

#include "common/decode_tile.cuh"
#include "common/prefill_tile.cuh"

namespace aether {

constexpr int kCombineRows = 4;    // prefill rows that a block merges at a time
constexpr int kCombineDims = 128;  // elements of a row that a warp merges at a time

template <class T, class Tile>
__device__ __forceinline__ T* output_of_row(const AttentionCall& call, const Tile& tile, int row) {
  return static_cast<T*>(call.out) + tile.head_of_row(row, call.num_heads) * call.head_dim;
}

template <class T, int kHeadDim>
__device__ __forceinline__ void paged_attention_combine(const AttentionCall& call) {
  const int block = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  if (block < call.combine_decode_blocks) {
    const int row = block % call.decode_tile_rows;
    const DecodeTile tile(call, block / call.decode_tile_rows, kv_head);
    if (!tile.has_rows || row >= tile.num_rows()) return;
    const KvSplits splits = tile.splits(call);
    if (splits.count <= 1) return;
#pragma unroll
    for (int dim = 0; dim < kHeadDim; dim += kCombineDims) {
      if (dim > 0) __syncthreads();  // the block's shared memory has been read
      combine_row<T, kDecodeRows, kHeadDim, kCombineRows>(output_of_row<T>(call, tile, row), call.head_dim,
                                                          call.decode_partials, tile.first_partial(call), splits.count,
                                                          row, call.sink_exponent(tile.query_head_of_row(row)), dim);
    }
    return;
  }
  // The number of split tiles is unknown at launch: blocks stride over rows until none is left.
  constexpr int kBlocks = kPrefillRows / kCombineRows;
  const PrefillBatch batch(call);
  const int num_blocks = static_cast<int>(gridDim.x) - call.combine_decode_blocks;
  for (int item = block - call.combine_decode_blocks;; item += num_blocks) {
    const PrefillBatch::ItemLocation location = batch.find<true>(item / kBlocks);
    if (location.sequence < 0) return;
    const PrefillTile tile = PrefillTile::of(batch, location, location.index, kv_head);
    const int row = item % kBlocks * kCombineRows + warp_index();
    if (row >= tile.num_rows()) continue;
    const KvSplits splits = batch.splits(tile.keys(call.window));
    if (splits.count <= 1) continue;
#pragma unroll
    for (int dim = 0; dim < kHeadDim; dim += kCombineDims) {
      combine_row<T, kPrefillRows, kHeadDim>(output_of_row<T>(call, tile, row), call.head_dim, call.prefill_partials,
                                             tile.partial, splits.count, row,
                                             call.sink_exponent(tile.query_head_of_row(row)), dim);
    }
  }
}

}  // namespace aether
