// Skinny matrix products on tensor cores: a warp multiplies a tile of 16 outputs (rows of the weight) by tiles of eight
// tokens and accumulates over K in float32.
//
// Thread 4g + t of a warp holds eight weights of output g and of output g + 8: inputs 8t … 8t + 7 of a 32-value chunk.
// The order of K within an mma is free as long as A and B agree, so weights and inputs are loaded from global memory
// into fragments by 16-byte loads, without shared memory or shuffles.
#pragma once

#include "common/frag8.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

namespace aether {

constexpr int kTileOutputs = 16;
constexpr int kTileTokens = 8;

// Token t of a projection is row t of its inputs.
struct AllRows {
  __device__ __forceinline__ int64_t row_of(int token) const { return token; }
};

// Input activations of a projection, [num_tokens, size]. `Rows` finds the rows of tokens.
template <class T, class Rows = AllRows>
struct Inputs : Rows {
  const T* x;
  int num_tokens;
  int size;
  bool is_aligned;

  __device__ __forceinline__ Inputs(const T* x, int num_tokens, int size, const Rows& rows = {})
      : Rows(rows), x(x), num_tokens(num_tokens), size(size), is_aligned(is_frag8_aligned(x, size)) {}

  // Loads `kChunks` fragments of a token, with one alignment branch for all: runs of kRun adjacent ones, the first at
  // k, the next kRun chunks further on. Out-of-range elements are zero.
  template <int kRun = 1, int kChunks>
  __device__ __forceinline__ void load_chunks(Frag8<T> (&chunks)[kChunks], int token, int k) const {
    const auto offset = [](int chunk) { return chunk / kRun * kRun * kChunk + chunk % kRun * kFrag8Values; };
    if (is_aligned) {
      const T* row = x + this->row_of(token) * size + k;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        chunks[chunk] = Frag8<T>{};
        if (token < num_tokens && k + offset(chunk) < size) {
          chunks[chunk] = *reinterpret_cast<const Frag8<T>*>(row + offset(chunk));
        }
      }
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        chunks[chunk] = load(token, k + offset(chunk));
      }
    }
  }

  // Loads eight inputs of a token; zeros beyond the last token or input.
  __device__ __forceinline__ Frag8<T> load(int token, int k) const {
    if (token >= num_tokens) {
      return Frag8<T>{};
    }
    return load_frag8(x + this->row_of(token) * size, k, size, is_aligned);
  }
};

// 1.0 in both halves.
template <class T>
constexpr uint32_t kOnes = 0x3f803f80u;
template <>
constexpr uint32_t kOnes<float16> = 0x3c003c00u;

// The A fragment of one of the two mma steps of a chunk.
template <class T>
__device__ __forceinline__ void fragment_of(uint32_t (&a)[4], const Frag8<T> (&weights)[2], int step) {
  a[0] = weights[0].pairs[2 * step];
  a[1] = weights[1].pairs[2 * step];
  a[2] = weights[0].pairs[2 * step + 1];
  a[3] = weights[1].pairs[2 * step + 1];
}

// c += weights · inputs of one chunk.
template <class T>
__device__ __forceinline__ void multiply_chunk(float (&c)[4], const Frag8<T> (&weights)[2], const Frag8<T>& inputs) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t a[4];
    fragment_of(a, weights, step);
    multiply_add<T>(c, a, inputs.pairs[2 * step], inputs.pairs[2 * step + 1]);
  }
}

// c = weights · inputs of one chunk.
template <class T>
__device__ __forceinline__ void multiply_first_chunk(float (&c)[4], const Frag8<T> (&weights)[2],
                                                     const Frag8<T>& inputs) {
  uint32_t a[4];
  fragment_of(a, weights, 0);
  multiply<T>(c, a, inputs.pairs[0], inputs.pairs[1]);
  fragment_of(a, weights, 1);
  multiply_add<T>(c, a, inputs.pairs[2], inputs.pairs[3]);
}

// Dequantisation of one chunk for both outputs of a thread: weight = scale · code + offset.
struct Scaling {
  float scales[2];
  float offsets[2];
  bool has_offset;
};

// c += (scales · codes + offsets) · inputs of one chunk.
template <class T>
__device__ __forceinline__ void multiply_scaled(float (&c)[4], const Frag8<T> (&codes)[2], const Frag8<T>& inputs,
                                                const Scaling& scaling) {
  float part[4];
  multiply_first_chunk(part, codes, inputs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    c[i] += scaling.scales[i / 2] * part[i];
  }
  if (scaling.has_offset) {
    const Frag8<T> ones[2] = {{{kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>}}, {{kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>}}};
    float total[4];
    multiply_first_chunk(total, ones, inputs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      c[i] += scaling.offsets[i / 2] * total[i];
    }
  }
}

// Float32 accumulators of one warp: 16 outputs by kTiles · 8 tokens.
template <class T, int kTiles>
struct WarpAccumulator {
  float sums[kTiles][4] = {};

  template <class WeightTile>
  __device__ __forceinline__ void add(const WeightTile& weight_tile, const typename WeightTile::Group& group, int chunk,
                                      const Frag8<T> (&inputs)[kTiles]) {
    const Frag8<T> weights[2] = {weight_tile.weights(group, 0, chunk), weight_tile.weights(group, 1, chunk)};
    if constexpr (WeightTile::kIsScaled) {
      const Scaling scaling = weight_tile.scaling(group, chunk);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        multiply_scaled(sums[tile], weights, inputs[tile], scaling);
      }
    } else {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        multiply_chunk(sums[tile], weights, inputs[tile]);
      }
    }
  }

  template <class Rows>
  __device__ __forceinline__ static void load(Frag8<T> (&inputs)[kTiles], const Inputs<T, Rows>& x, int token, int k) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      inputs[tile] = x.load(token + tile * kTileTokens + lane_index() / 4, k + lane_index() % 4 * kFrag8Values);
    }
  }

  // Loads the inputs of all chunks of a group, [tiles][chunks]; a thread has runs of kRun fragments (see load_chunks).
  template <int kRun = 1, int kChunks, class Rows>
  __device__ __forceinline__ static void load_group(Frag8<T> (&inputs)[kTiles][kChunks], const Inputs<T, Rows>& x,
                                                    int token, int k) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      x.template load_chunks<kRun>(inputs[tile], token + tile * kTileTokens + lane_index() / 4,
                                   k + lane_index() % 4 * kRun * kFrag8Values);
    }
  }

  // Writes the accumulators to [tokens][outputs], rows `stride` apart.
  __device__ __forceinline__ void store(float* to, int stride) const {
    const int row = lane_index() / 4, column = lane_index() % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[(tile * kTileTokens + column + i % 2) * stride + row + i / 2 * 8] = sums[tile][i];
      }
    }
  }
};

// Float32 runs on FMA units, since TF32 tensor cores round too much: four threads share an output and reduce at the
// end.
template <int kTiles>
struct WarpAccumulator<float32, kTiles> {
  static constexpr int kTokens = kTiles * kTileTokens;
  float sums[kTokens][2] = {};

  template <class WeightTile>
  __device__ __forceinline__ void add(const WeightTile& weight_tile, const typename WeightTile::Group& group, int chunk,
                                      const Frag8<float32> (&inputs)[kTokens]) {
    const Frag8<float32> weights[2] = {weight_tile.weights(group, 0, chunk), weight_tile.weights(group, 1, chunk)};
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
      float part[2] = {}, total = 0.0f;
#pragma unroll
      for (int i = 0; i < kFrag8Values; ++i) {
        const float input = inputs[token].values[i];
        part[0] += weights[0].values[i] * input;
        part[1] += weights[1].values[i] * input;
        total += input;
      }
      if constexpr (WeightTile::kIsScaled) {
        const Scaling scaling = weight_tile.scaling(group, chunk);
        for (int half = 0; half < 2; ++half) {
          part[half] = scaling.scales[half] * part[half] + (scaling.has_offset ? scaling.offsets[half] * total : 0.0f);
        }
      }
      sums[token][0] += part[0];
      sums[token][1] += part[1];
    }
  }

  template <class Rows>
  __device__ __forceinline__ static void load(Frag8<float32> (&inputs)[kTokens], const Inputs<float32, Rows>& x,
                                              int token, int k) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      inputs[i] = x.load(token + i, k + lane_index() % 4 * kFrag8Values);
    }
  }

  __device__ __forceinline__ void store(float* to, int stride) const {
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sums[token][half];
        sum += __shfl_xor_sync(kFullWarp, sum, 1);
        sum += __shfl_xor_sync(kFullWarp, sum, 2);
        if (lane_index() % 4 == 0) {
          to[token * stride + lane_index() / 4 + half * 8] = sum;
        }
      }
    }
  }
};

// Number of `Frag8` that WarpAccumulator<T, kTiles>::load fills.
template <class T, int kTiles>
constexpr int kInputs = sizeof(T) == 4 ? kTiles * kTileTokens : kTiles;

}  // namespace aether
