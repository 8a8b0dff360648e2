// Dequantises rows of a packed weight [N, K] to a row-major matrix of float32, float16 or bfloat16, the operand of a
// dense GEMM by cuBLASLt.
//
// A warp processes 16 outputs by 128 inputs: it loads quantised weights like the projection kernels, 16 bytes per
// thread, and stores 64 bytes of each of eight rows at a time. It is memory-bound: a warp has only one group (these
// 128 inputs), so that enough blocks are resident to hide latency.

#include "common/dependent_launch.cuh"
#include "common/float8_weight.cuh"
#include "common/quantized_weight.cuh"

namespace aether {

// scale · code + offset in float32, rounded once to T; zero points are already subtracted from the codes.
template <class T>
__device__ __forceinline__ Frag8<T> scaled(const Frag8<T>& codes, float scale, float offset) {
  Frag8<T> result;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kFrag8Values; ++i) {
      result.values[i] = scale * codes.values[i] + offset;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kFrag8Values / 2; ++i) {
      const T first = reinterpret_cast<const T(&)[2]>(codes.pairs[i])[0];
      const T second = reinterpret_cast<const T(&)[2]>(codes.pairs[i])[1];
      result.pairs[i] = packed<T>(scale * to_float(first) + offset, scale * to_float(second) + offset);
    }
  }
  return result;
}

// Stores row[k … k + 7] up to the row's end.
template <class T>
__device__ __forceinline__ void store_frag8(T* row, int k, int size, bool is_aligned, const Frag8<T>& values) {
  if (is_aligned && k + kFrag8Values <= size) {
    constexpr int kVectors = sizeof(Frag8<T>) / kVectorBytes;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      reinterpret_cast<uint4*>(row + k)[i] = reinterpret_cast<const uint4*>(&values)[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kFrag8Values; ++i) {
    if (k + i < size) {
      row[k + i] = reinterpret_cast<const T(&)[kFrag8Values]>(values)[i];
    }
  }
}

// Writes the rows from first_tile · 16 on to out [num_rows, num_inputs]. Grid x: one warp per group; y: tiles.
template <class WeightTile>
__device__ __forceinline__ void dequantize(typename WeightTile::Element* out, int first_tile, int num_rows,
                                           const typename WeightTile::Params& params) {
  using T = typename WeightTile::Element;
  const int group = static_cast<int>(blockIdx.x * blockDim.x / kWarpSize) + warp_index();
  if (group * WeightTile::kGroupInputs >= params.num_inputs) {
    return;
  }
  const WeightTile weight_tile(params, first_tile + static_cast<int>(blockIdx.y));
  const typename WeightTile::Group codes = weight_tile.load(group);
  const bool is_aligned = is_vectorizable(out, params.num_inputs);
#pragma unroll
  for (int row_half = 0; row_half < 2; ++row_half) {
    const int row = static_cast<int>(blockIdx.y) * kTileOutputs + row_half * 8 + lane_index() / 4;
    if (row >= num_rows) {
      continue;
    }
    T* target = out + static_cast<int64_t>(row) * params.num_inputs;
#pragma unroll
    for (int chunk = 0; chunk < WeightTile::kChunks; ++chunk) {
      const Scaling scaling = weight_tile.scaling(codes, chunk);
      const int k = group * WeightTile::kGroupInputs + chunk * kChunk + lane_index() % 4 * kFrag8Values;
      store_frag8(
          target, k, params.num_inputs, is_aligned,
          scaled(weight_tile.weights(codes, row_half, chunk), scaling.scales[row_half], scaling.offsets[row_half]));
    }
  }
}

}  // namespace aether

#define AETHER_DEQUANTIZE(bits, dtype)                                                                             \
  extern "C" __global__ void __launch_bounds__(128, 8) dequantize_weight_int##bits##_##dtype(                      \
      aether::dtype* out, const uint8_t* weight, int first_tile, int num_rows, int num_outputs, int num_inputs,    \
      int num_blocks, int log2_chunks, int affine_term) {                                                          \
    aether::begin_kernel();                                                                                        \
    aether::dequantize<aether::QuantizedWeight<aether::dtype, bits, aether::AffineTerm::kRuntime>>(                \
        out, first_tile, num_rows,                                                                                 \
        {weight, num_outputs, num_inputs, num_blocks, log2_chunks, static_cast<aether::AffineTerm>(affine_term)}); \
  }
#define AETHER_DEQUANTIZE_BITS(bits) \
  AETHER_DEQUANTIZE(bits, float32)   \
  AETHER_DEQUANTIZE(bits, float16)   \
  AETHER_DEQUANTIZE(bits, bfloat16)

AETHER_DEQUANTIZE_BITS(8)
AETHER_DEQUANTIZE_BITS(4)
AETHER_DEQUANTIZE_BITS(2)
AETHER_DEQUANTIZE_BITS(1)

#define AETHER_DEQUANTIZE_FLOAT8(dtype)                                                                           \
  extern "C" __global__ void __launch_bounds__(128, 8) dequantize_weight_float8_##dtype(                          \
      aether::dtype* out, const uint8_t* weight, int first_tile, int num_rows, int num_outputs, int num_inputs) { \
    aether::begin_kernel();                                                                                       \
    aether::dequantize<aether::Float8Weight<aether::dtype>>(out, first_tile, num_rows,                            \
                                                            {weight, num_outputs, num_inputs});                   \
  }
AETHER_DEQUANTIZE_FLOAT8(float16)
AETHER_DEQUANTIZE_FLOAT8(bfloat16)
