// A tile of 16 outputs of a weight in fp8: the weight operand of WarpAccumulator, and of project_gemv.
//
// `float8_weights.py` packs a weight as row-major codes float8_e4m3fn [num_outputs, K], K padded with zeros to a
// multiple of 16, followed by a float32 scale for each output: the operand that cuBLASLt multiplies. Float16 and
// bfloat16 represent each code exactly; scales are applied to float32 accumulators.
#pragma once

#include "common/dequantize_pair.cuh"
#include "common/frag8.cuh"
#include "common/mma_gemv.cuh"

namespace aether {

// Eight codes, in two words, as a fragment of T.
template <class T>
__device__ __forceinline__ Frag8<T> float8_fragment(uint32_t low, uint32_t high) {
  Frag8<T> result;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result.values[i] = float8_value(low >> (8 * i));
      result.values[i + 4] = float8_value(high >> (8 * i));
    }
  } else {
    result.pairs[0] = dequantized_pair<T, CodeType::kFloat8>(neighbours<0>(low));
    result.pairs[1] = dequantized_pair<T, CodeType::kFloat8>(neighbours<1>(low));
    result.pairs[2] = dequantized_pair<T, CodeType::kFloat8>(neighbours<0>(high));
    result.pairs[3] = dequantized_pair<T, CodeType::kFloat8>(neighbours<1>(high));
  }
  return result;
}

// Kernels that are short of registers load fewer chunks of inputs at a time.
template <class T, int kNumChunks = 4>
struct Float8Weight {
  using Element = T;
  using Stored = uint8_t;
  static constexpr bool kIsScaled = true;
  static constexpr int kChunks = kNumChunks;
  static constexpr int kGroupInputs = kChunks * kChunk;

  struct Group {
    uint2 rows[2][kChunks];
  };

  // A packed weight as a kernel argument.
  struct Params {
    const uint8_t* address;
    int num_outputs;
    int num_inputs;
  };

  const uint8_t* row;
  int other_row;  // bytes from `row` to the row of the other output
  int size;
  float scales[2];

  // Bytes from one row to the next.
  __device__ __forceinline__ static int row_size(int num_inputs) {
    return (num_inputs + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  }

  // Outputs beyond the last read the last one; stores skip them.
  __device__ __forceinline__ Float8Weight(const Params& params, int tile) : size(row_size(params.num_inputs)) {
    const int first = min(tile * kTileOutputs + lane_index() / 4, params.num_outputs - 1);
    const int second = min(tile * kTileOutputs + 8 + lane_index() / 4, params.num_outputs - 1);
    row = params.address + static_cast<int64_t>(first) * size;
    other_row = (second - first) * size;
    const auto* all_scales =
        reinterpret_cast<const float*>(params.address + static_cast<int64_t>(params.num_outputs) * size);
    scales[0] = all_scales[first];
    scales[1] = all_scales[second];
  }

  __device__ __forceinline__ Group load(int group) const {
    Group result;
    const int first = group * kGroupInputs + lane_index() % 4 * kFrag8Values;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int k = first + chunk * kChunk;
        result.rows[half][chunk] = k < size ? *reinterpret_cast<const uint2*>(row + half * other_row + k) : uint2{0, 0};
      }
    }
    return result;
  }

  __device__ __forceinline__ Frag8<T> weights(const Group& group, int half, int chunk) const {
    return float8_fragment<T>(group.rows[half][chunk].x, group.rows[half][chunk].y);
  }

  __device__ __forceinline__ Scaling scaling(const Group&, int) const {
    return {{scales[0], scales[1]}, {0.0f, 0.0f}, false};
  }

  // For project_gemv: half of a piece of 16 codes, and the scales of a thread's sums.
  __device__ __forceinline__ static Frag8<T> fragment(const uint4& piece, int half) {
    return half == 0 ? float8_fragment<T>(piece.x, piece.y) : float8_fragment<T>(piece.z, piece.w);
  }
  __device__ __forceinline__ void scale(float (&sums)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] *= scales[i / 2];
    }
  }
};

}  // namespace aether
