// Quantises rows x[R, K] of float32, float16 or bfloat16 to float8_e4m3fn with a float32 scale for each row: inputs of
// a product in fp8, and its weights. A block quantises one row. Codes are row-major, K padded with zeros to a multiple
// of 16; scales are the largest magnitude over 448 (`quantize_rows` of the core's definition).

#include "common/dependent_launch.cuh"
#include "common/kv_quantization.cuh"
#include "common/reduce.cuh"

namespace aether {

// The larger of two magnitudes; NaN is larger than any.
struct MaxMagnitude {
  static constexpr float kNeutral = 0.0f;
  __device__ __forceinline__ static float combine(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
  }
};

// Calls `use(k, values)` for every 16 values of a row, from column k on; values beyond the row are zeros. `is_aligned`:
// rows can be read in vectors.
template <class T, class Use>
__device__ __forceinline__ void for_each_16(const T* row, int num_inputs, bool is_aligned, const Use& use) {
  for (int k = static_cast<int>(threadIdx.x) * 16; k < num_inputs; k += static_cast<int>(blockDim.x) * 16) {
    float values[16];
    if (is_aligned && k + 16 <= num_inputs) {
      constexpr int kSize = Vector<T>::size;
#pragma unroll
      for (int first = 0; first < 16; first += kSize) {
        const Vector<T> loaded = Vector<T>::load(row + k + first);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          values[first + i] = to_float(loaded.values[i]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        values[i] = k + i < num_inputs ? to_float(row[k + i]) : 0.0f;
      }
    }
    use(k, values);
  }
}

// `largest`, unless null, becomes the bits of the largest magnitude of all rows, for error reporting.
template <class T>
__device__ __forceinline__ void quantize_row(uint8_t* codes, float* scales, const T* x, int num_inputs,
                                             uint32_t* largest) {
  const T* row = x + static_cast<int64_t>(blockIdx.x) * num_inputs;
  const bool is_aligned = is_vectorizable(x, num_inputs);
  float magnitude = 0.0f;
  for_each_16(row, num_inputs, is_aligned, [&](int, const float (&values)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      magnitude = MaxMagnitude::combine(magnitude, fabsf(values[i]));
    }
  });
  magnitude = block_reduce<MaxMagnitude>(magnitude);
  const CodeScale scale = code_scale(magnitude, CodeType::kFloat8);
  if (threadIdx.x == 0) {
    scales[blockIdx.x] = scale.scale;
    if (largest != nullptr) {
      atomicMax(largest, __float_as_uint(magnitude));
    }
  }
  uint8_t* target = codes + static_cast<int64_t>(blockIdx.x) * ((num_inputs + 15) / 16 * 16);
  for_each_16(row, num_inputs, is_aligned, [&](int k, const float (&values)[16]) {
    uint32_t words[4] = {};
    if (scale.inverse != 0.0f) {  // rows that are not finite are zeros
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        const uint32_t codes = float8_codes(values[i] * scale.inverse, values[i + 1] * scale.inverse);
        words[i / 4] |= codes << (8 * (i % 4));
      }
    }
    *reinterpret_cast<uint4*>(target + k) = uint4{words[0], words[1], words[2], words[3]};
  });
}

}  // namespace aether

#define AETHER_QUANTIZE_ROWS(dtype)                                                               \
  extern "C" __global__ void __launch_bounds__(512) quantize_rows_##dtype(                        \
      uint8_t* codes, float* scales, const aether::dtype* x, int num_inputs, uint32_t* largest) { \
    aether::begin_kernel();                                                                       \
    aether::quantize_row(codes, scales, x, num_inputs, largest);                                  \
  }
AETHER_FOR_EACH_FLOAT(AETHER_QUANTIZE_ROWS)
