// The epilogue of projections whose blocks have 16 pairs of elements of a head, i and i + head_dim / 2: bias, rotary
// embedding, and the write to the queries or to the KV cache.
#pragma once

#include "common/paged_cache.cuh"
#include "common/projection.cuh"

namespace aether {

template <class T>
struct RotatedHeads {
  T* out;                       // [T, H, C], or a cache [N, H, P, C]
  const T* bias;                // [H * C], may be null
  const float* rope_table;      // [T, C]: cosines, then sines; null for values
  const int64_t* slot_mapping;  // [T], null for queries
  int num_tokens;
  int num_heads;
  int head_dim;
  int block_size;

  // Tiles of 16 elements: that of the first half of a head for pair tile `pair`, and of the second half.
  __device__ __forceinline__ int first_tile(int pair) const {
    const int tiles_of_half = head_dim / (2 * kTileOutputs);
    return pair + pair / tiles_of_half * tiles_of_half;
  }
  __device__ __forceinline__ int second_tile(int pair) const {
    return first_tile(pair) + head_dim / (2 * kTileOutputs);
  }

  // Adds the sums of a block's warps. `sums` is shared memory: [warps][2][8 tokens][17].
  __device__ __forceinline__ void store(const WarpAccumulator<T, 1> (&accumulators)[2],
                                        float (*sums)[2][kTileTokens * kSumsStride], int first_token, int pair) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      accumulators[half].store(sums[warp_index()][half], kSumsStride);
    }
    const int num_threads = static_cast<int>(blockDim.x), num_warps = num_threads / kWarpSize;
    const int output = first_tile(pair) * kTileOutputs, half = head_dim / 2, head = output / head_dim;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * kTileOutputs; i += num_threads) {
      const int token = first_token + i / kTileOutputs, element = output % head_dim + i % kTileOutputs;
      if (token >= num_tokens) {
        return;
      }
      // Read before the sums: neither waits for the other.
      const int64_t slot = slot_mapping == nullptr ? 0 : slot_mapping[token];
      const T* const own_bias = bias == nullptr ? nullptr : bias + head * head_dim + element;
      float totals[2] = {own_bias == nullptr ? 0.0f : to_float(own_bias[0]),
                         own_bias == nullptr ? 0.0f : to_float(own_bias[half])};
      float cosine = 1.0f, sine = 0.0f;
      if (rope_table != nullptr) {
        const float* const angles = rope_table + static_cast<int64_t>(token) * head_dim + element;
        cosine = angles[0];
        sine = angles[half];
      }
      for (int warp = 0; warp < num_warps; ++warp) {
        const int place = i / kTileOutputs * kSumsStride + i % kTileOutputs;
        totals[0] += sums[warp][0][place];
        totals[1] += sums[warp][1][place];
      }
      if (slot < 0) {
        continue;
      }
      const int64_t row = slot_mapping == nullptr ? static_cast<int64_t>(token) * num_heads + head
                                                  : row_of_slot(slot, head, num_heads, block_size);
      T* const target = out + row * head_dim + element;
      target[0] = from_float<T>(totals[0] * cosine - totals[1] * sine);
      target[half] = from_float<T>(totals[1] * cosine + totals[0] * sine);
    }
  }
};

}  // namespace aether
