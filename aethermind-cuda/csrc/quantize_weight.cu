// Quantises rows of a weight [N, K] of float32, float16 or bfloat16 into the layout of common/quantized_weight.cuh:
// first the scales, a thread per scale block, then the quantised weights, a thread per packed word group.

#include "common/dependent_launch.cuh"
#include "common/quantize_block.cuh"

namespace aether {

// The layout of `_PackedWeight` in device_packing.py. `values` are num_rows rows from first_row on, which is a multiple
// of 16, of a weight [num_outputs, num_inputs]; block_size values share a scale.
struct PackedWeight {
  uint8_t* address;
  const void* values;
  // The bits of the largest magnitude that float16 cannot represent, for error reporting; ordered like floats.
  uint32_t* largest;
  int first_row;
  int num_rows;
  int num_outputs;
  int num_inputs;
  int num_blocks;
  int block_size;
  int blocks_per_scale_vector;

  __device__ __forceinline__ int64_t num_tiles() const { return (num_outputs + kTileOutputs - 1) / kTileOutputs; }
  __device__ __forceinline__ int64_t num_groups() const { return (num_inputs + 4 * kChunk - 1) / (4 * kChunk); }

  template <int kBits>
  __device__ __forceinline__ uint32_t* codes() const {
    return reinterpret_cast<uint32_t*>(address);
  }
  template <int kBits>
  __device__ __forceinline__ uint16_t* scales() const {
    return reinterpret_cast<uint16_t*>(codes<kBits>() + num_tiles() * num_groups() * kTileOutputs * 4 * kBits);
  }
  // Zero points or offsets follow the scales.
  template <int kBits>
  __device__ __forceinline__ void* terms() const {
    return scales<kBits>() + num_tiles() * blocks_per_row() * kTileOutputs;
  }
  // Scale blocks per row, padded to whole scale vectors.
  __device__ __forceinline__ int blocks_per_row() const {
    return (num_blocks + blocks_per_scale_vector - 1) / blocks_per_scale_vector * blocks_per_scale_vector;
  }
  __device__ __forceinline__ int64_t scale_index(int row, int block) const {
    const int in_tile = row % kTileOutputs, half = in_tile / 8, in_vector = block % blocks_per_scale_vector;
    const int64_t tile = static_cast<int64_t>(row / kTileOutputs) * blocks_per_row() * kTileOutputs;
    return tile + ((block - in_vector) * 8 + in_tile % 8 * blocks_per_scale_vector + in_vector) * 2 + half;
  }
};

// The number of rows, padded to whole tiles.
__device__ __forceinline__ int padded_rows(const PackedWeight& weight) {
  return (weight.num_rows + kTileOutputs - 1) / kTileOutputs * kTileOutputs;
}

template <class T, int kBits, AffineTerm kTerm>
__device__ __forceinline__ void quantize_scales(const PackedWeight& weight) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int blocks_per_row = weight.blocks_per_row();
  const int row = static_cast<int>(index / blocks_per_row), block = static_cast<int>(index % blocks_per_row);
  if (row >= padded_rows(weight)) {
    return;
  }
  BlockScale chosen{from_float<float16>(0.0f), from_float<float16>(0.0f), 0.0f};
  if (row < weight.num_rows && block < weight.num_blocks) {
    const int begin = block * weight.block_size;
    const T* values = static_cast<const T*>(weight.values) + static_cast<int64_t>(row) * weight.num_inputs + begin;
    const Block<T> values_of_block{values, min(weight.block_size, weight.num_inputs - begin)};
    const Extent extent = extent_of(values_of_block);
    if (!(fabsf(extent.peak) <= kLargestHalf)) {
      atomicMax(weight.largest, __float_as_uint(extent.peak) & 0x7fffffffu);
    }
    chosen = scale_of<kBits, kTerm>(values_of_block, extent);
  }
  const int64_t scale_index = weight.scale_index(weight.first_row + row, block);
  weight.scales<kBits>()[scale_index] = __half_as_ushort(chosen.scale);
  if constexpr (kTerm == AffineTerm::kZeroPoints) {
    static_cast<uint8_t*>(weight.terms<kBits>())[scale_index] = static_cast<uint8_t>(chosen.zero);
  } else if constexpr (kTerm == AffineTerm::kOffsets) {
    static_cast<uint16_t*>(weight.terms<kBits>())[scale_index] = __half_as_ushort(chosen.offset);
  }
}

// A code as it is stored: unsigned.
template <int kBits, AffineTerm kTerm>
__device__ __forceinline__ uint32_t stored_code(float x, const BlockScale& chosen, float inverse) {
  if constexpr (kBits == 1) {
    return x < 0.0f && inverse != 0.0f ? 0 : 1;
  } else {
    constexpr int kZero = kTerm == AffineTerm::kNone ? 1 << (kBits - 1) : 0;
    return static_cast<uint32_t>(static_cast<int>(code_of<kBits, kTerm>(x, chosen, inverse)) + kZero);
  }
}

template <class T, int kBits, AffineTerm kTerm>
__device__ __forceinline__ void quantize_codes(const PackedWeight& weight) {
  constexpr int kThreads = 4;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int thread = static_cast<int>(index % kThreads);
  const int group = static_cast<int>(index / kThreads % weight.num_groups());
  const int row = static_cast<int>(index / kThreads / weight.num_groups());
  if (row >= padded_rows(weight)) {
    return;
  }
  const int output = weight.first_row + row;
  const T* values = static_cast<const T*>(weight.values) + static_cast<int64_t>(row) * weight.num_inputs;
  uint32_t words[kBits] = {};
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const int first = (group * 4 + chunk) * kChunk + kFrag8Values * thread;
    if (row >= weight.num_rows || first >= weight.num_inputs) {
      continue;
    }
    const int64_t scale_index = weight.scale_index(output, first / weight.block_size);
    BlockScale chosen{__ushort_as_half(weight.scales<kBits>()[scale_index]), from_float<float16>(0.0f), 0.0f};
    if constexpr (kTerm == AffineTerm::kZeroPoints) {
      chosen.zero = static_cast<float>(static_cast<const uint8_t*>(weight.terms<kBits>())[scale_index]);
    } else if constexpr (kTerm == AffineTerm::kOffsets) {
      chosen.offset = __ushort_as_half(static_cast<const uint16_t*>(weight.terms<kBits>())[scale_index]);
    }
    const float inverse = inverse_of(chosen.scale);
#pragma unroll
    for (int i = 0; i < kFrag8Values; ++i) {
      if (first + i < weight.num_inputs) {
        const int bit = kBits * (4 * chunk + i / 2);
        const uint32_t code = stored_code<kBits, kTerm>(to_float(values[first + i]), chosen, inverse);
        words[bit / 16] |= code << (bit % 16 + 16 * (i % 2));
      }
    }
  }
  const int64_t tile = output / kTileOutputs, in_tile = output % kTileOutputs;
  const int64_t position = (tile * weight.num_groups() + group) * kTileOutputs + in_tile;
  uint32_t* target = weight.codes<kBits>() + (position * kThreads + thread) * kBits;
#pragma unroll
  for (int i = 0; i < kBits; ++i) {
    target[i] = words[i];
  }
}

}  // namespace aether

#define AETHER_QUANTIZE(dtype, bits, term, name)                                                                       \
  extern "C" __global__ void __launch_bounds__(256, 4) quantize_scales_##name##_##dtype(aether::PackedWeight weight) { \
    aether::begin_kernel();                                                                                            \
    aether::quantize_scales<aether::dtype, bits, aether::AffineTerm::term>(weight);                                    \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) quantize_codes_##name##_##dtype(aether::PackedWeight weight) {     \
    aether::begin_kernel();                                                                                            \
    aether::quantize_codes<aether::dtype, bits, aether::AffineTerm::term>(weight);                                     \
  }
#define AETHER_QUANTIZE_ALL(dtype)                 \
  AETHER_QUANTIZE(dtype, 8, kNone, int8)           \
  AETHER_QUANTIZE(dtype, 8, kZeroPoints, int8_zp)  \
  AETHER_QUANTIZE(dtype, 8, kOffsets, int8_offset) \
  AETHER_QUANTIZE(dtype, 4, kNone, int4)           \
  AETHER_QUANTIZE(dtype, 4, kZeroPoints, int4_zp)  \
  AETHER_QUANTIZE(dtype, 4, kOffsets, int4_offset) \
  AETHER_QUANTIZE(dtype, 2, kZeroPoints, int2)     \
  AETHER_QUANTIZE(dtype, 1, kNone, int1)
AETHER_FOR_EACH_FLOAT(AETHER_QUANTIZE_ALL)
