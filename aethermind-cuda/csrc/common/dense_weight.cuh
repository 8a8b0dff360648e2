// A tile of 16 outputs of a row-major weight [num_outputs, num_inputs]: the weight operand of WarpAccumulator.
#pragma once

#include "common/frag8.cuh"
#include "common/mma_gemv.cuh"

namespace aether {

template <class T>
struct DenseWeight {
  using Element = T;
  using Stored = T;
  static constexpr bool kIsScaled = false;
  static constexpr int kChunks = 2;
  static constexpr int kGroupInputs = kChunks * kChunk;

  struct Group {
    Frag8<T> rows[2][kChunks];
  };

  // A weight as a kernel argument.
  struct Params {
    const T* address;
    int num_outputs;
    int num_inputs;
  };

  const T* rows[2];
  int num_inputs;
  bool is_aligned;

  // Outputs beyond the last read the last one; stores skip them.
  __device__ __forceinline__ DenseWeight(const Params& params, int tile)
      : num_inputs(params.num_inputs), is_aligned(is_frag8_aligned(params.address, params.num_inputs)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = min(tile * kTileOutputs + half * 8 + lane_index() / 4, params.num_outputs - 1);
      rows[half] = params.address + static_cast<int64_t>(output) * num_inputs;
    }
  }

  __device__ __forceinline__ Group load(int group) const {
    Group result;
    const int first = group * kGroupInputs + lane_index() % 4 * kFrag8Values;
    if (is_aligned) {  // one branch for all loads of a group
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int k = first + chunk * kChunk;
          result.rows[half][chunk] = k < num_inputs ? *reinterpret_cast<const Frag8<T>*>(rows[half] + k) : Frag8<T>{};
        }
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          result.rows[half][chunk] = load_frag8_tail(rows[half], first + chunk * kChunk, num_inputs);
        }
      }
    }
    return result;
  }

  __device__ __forceinline__ Frag8<T> weights(const Group& group, int half, int chunk) const {
    return group.rows[half][chunk];
  }

  // For project_gemv: elements from one row to the next, a piece of a row as fragments, and sums that need no scale.
  __device__ __forceinline__ static int row_size(int num_inputs) { return num_inputs; }
  __device__ __forceinline__ static Frag8<T> fragment(const uint4& piece, int) {
    return reinterpret_cast<const Frag8<T>&>(piece);
  }
  __device__ __forceinline__ void scale(float (&)[4]) const {}
};

}  // namespace aether
