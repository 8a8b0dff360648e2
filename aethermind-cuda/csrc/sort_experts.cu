// Sorts the token-expert pairs of a step by expert into tiles of one expert, in one block (see
// common/expert_products.cuh).

#include "common/dependent_launch.cuh"
#include "common/expert_products.cuh"

namespace aether {

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ int prefix_sum(int value) {
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int before = __shfl_up_sync(kFullWarp, value, distance);
    value += lane_index() >= distance ? before : 0;
  }
  return value;
}

// Calls body(pair, its expert) for this thread's pairs. Several ids are loaded at a time to hide latency.
template <class Body>
__device__ __forceinline__ void for_each_pair(const int* ids, int num_pairs, int num_experts, const Body& body) {
  constexpr int kBatch = 8;
  const int num_threads = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < num_pairs; first += kBatch * num_threads) {
    int experts[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int pair = first + i * num_threads;
      experts[i] = pair < num_pairs ? ids[pair] : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int pair = first + i * num_threads;
      if (pair < num_pairs) {
        body(pair, checked_index(experts[i], num_experts));
      }
    }
  }
}

// Writes the num_pairs pairs by expert to `order`, and tiles of at most tile_rows of them to `tiles`, the rest of
// its max_tiles empty. The order within an expert is arbitrary; no result depends on it. Dynamic shared memory:
// int[num_experts], counts and then the next position of each expert.
__device__ __forceinline__ void sort_experts(int* order, ExpertTile* tiles, const int* ids, int num_pairs,
                                             int num_experts, int tile_rows, int max_tiles) {
  AETHER_DYNAMIC_SHARED(int, positions);
  __shared__ int num_tiles;
  const int thread = static_cast<int>(threadIdx.x), num_threads = static_cast<int>(blockDim.x);
  for (int expert = thread; expert < num_experts; expert += num_threads) {
    positions[expert] = 0;
  }
  __syncthreads();
  for_each_pair(ids, num_pairs, num_experts, [&](int, int expert) { atomicAdd(&positions[expert], 1); });
  __syncthreads();
  if (warp_index() == 0) {
    int choices_before = 0, tiles_before = 0;
    for (int first = 0; first < num_experts; first += kWarpSize) {
      const int expert = first + lane_index();
      const int count = expert < num_experts ? positions[expert] : 0;
      const int tiles_of_expert = (count + tile_rows - 1) / tile_rows;
      const int choices_through = prefix_sum(count), tiles_through = prefix_sum(tiles_of_expert);
      const int begin = choices_before + choices_through - count;
      ExpertTile* const own = tiles + tiles_before + tiles_through - tiles_of_expert;
      for (int tile = 0; tile < tiles_of_expert; ++tile) {
        own[tile] = {expert, begin + tile * tile_rows, min(tile_rows, count - tile * tile_rows)};
      }
      if (expert < num_experts) {
        positions[expert] = begin;
      }
      choices_before += __shfl_sync(kFullWarp, choices_through, kWarpSize - 1);
      tiles_before += __shfl_sync(kFullWarp, tiles_through, kWarpSize - 1);
    }
    if (lane_index() == 0) {
      num_tiles = tiles_before;
    }
  }
  __syncthreads();
  for (int tile = num_tiles + thread; tile < max_tiles; tile += num_threads) {
    tiles[tile] = {0, 0, 0};
  }
  for_each_pair(ids, num_pairs, num_experts,
                [&](int pair, int expert) { order[atomicAdd(&positions[expert], 1)] = pair; });
}

}  // namespace aether

extern "C" __global__ void __launch_bounds__(1024)
    sort_experts(int* order, aether::ExpertTile* tiles, const int* ids, int num_pairs, int num_experts, int tile_rows,
                 int max_tiles) {
  aether::begin_kernel();
  aether::sort_experts(order, tiles, ids, num_pairs, num_experts, tile_rows, max_tiles);
}
