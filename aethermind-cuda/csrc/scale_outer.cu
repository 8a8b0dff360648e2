// The scales of products of fp8 codes, for which cuBLASLt returns float32 sums: row_scales[T] · column_scales[N] ·
// sums[T, N] + bias[N], for up to three products whose sums are columns of one matrix, and SwiGLU of two.
// Grid x: columns, y: rows. Numbers of columns are multiples of 16.

#include "common/activations.cuh"
#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace aether {

// Columns of a thread.
constexpr int kScaledColumns = 4;

// The columns of one product, [T, width].
template <class T>
struct ScaledPart {
  T* out;
  const float* scales;
  const T* bias;  // may be null
  int width;
  int begin;  // its first column of the sums
};

template <class T>
__device__ __forceinline__ void store_4(T* target, const float (&values)[kScaledColumns]) {
  Vector<T, kScaledColumns> rounded;
#pragma unroll
  for (int i = 0; i < kScaledColumns; ++i) {
    rounded.values[i] = from_float<T>(values[i]);
  }
  if (reinterpret_cast<uintptr_t>(target) % sizeof(rounded) == 0) {
    rounded.store(target);
    return;
  }
#pragma unroll
  for (int i = 0; i < kScaledColumns; ++i) {
    target[i] = rounded.values[i];
  }
}

template <class T>
__device__ __forceinline__ void scale_outer(const ScaledPart<T> (&parts)[3], const float* sums, const float* row_scales,
                                            int num_columns, int stride) {
  using Vec4 = Vector<float, kScaledColumns>;
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kScaledColumns;
  if (column >= num_columns) {
    return;
  }
  const int64_t row = blockIdx.y;
  const int second = parts[0].width, third = second + parts[1].width;
  // A copy and not a reference: arguments that are indexed at run time would be copied to local memory.
  const ScaledPart<T> part = column < second ? parts[0] : column < third ? parts[1] : parts[2];
  const int first = column - (column < second ? 0 : column < third ? second : third);
  const Vec4 sum = Vec4::load(sums + row * stride + part.begin + first), scale = Vec4::load(part.scales + first);
  float values[kScaledColumns];
#pragma unroll
  for (int i = 0; i < kScaledColumns; ++i) {
    const float bias = part.bias == nullptr ? 0.0f : to_float(part.bias[first + i]);
    values[i] = row_scales[row] * scale.values[i] * sum.values[i] + bias;
  }
  store_4(part.out + row * part.width + first, values);
}

// out[T, N] = silu(gate) · up for sums of gate in the first columns, and of up from up_begin on.
template <class T>
__device__ __forceinline__ void scale_outer_silu_mul(T* out, const float* sums, const float* row_scales,
                                                     const float* gate_scales, const float* up_scales, int width,
                                                     int up_begin, int stride) {
  using Vec4 = Vector<float, kScaledColumns>;
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kScaledColumns;
  if (column >= width) {
    return;
  }
  const int64_t row = blockIdx.y;
  const Vec4 gate = Vec4::load(sums + row * stride + column), gate_scale = Vec4::load(gate_scales + column);
  const Vec4 up = Vec4::load(sums + row * stride + up_begin + column), up_scale = Vec4::load(up_scales + column);
  const float row_scale = row_scales[row];
  float values[kScaledColumns];
#pragma unroll
  for (int i = 0; i < kScaledColumns; ++i) {
    const float scaled = row_scale * up_scale.values[i] * up.values[i];
    values[i] = silu_for<T>(row_scale * gate_scale.values[i] * gate.values[i]) * scaled;
  }
  store_4(out + row * width + column, values);
}

}  // namespace aether

#define AETHER_SCALE_OUTER(dtype)                                                                         \
  extern "C" __global__ void __launch_bounds__(256) scale_outer_##dtype(                                  \
      aether::dtype* out0, const float* scales0, const aether::dtype* bias0, int width0, int begin0,      \
      aether::dtype* out1, const float* scales1, const aether::dtype* bias1, int width1, int begin1,      \
      aether::dtype* out2, const float* scales2, const aether::dtype* bias2, int width2, int begin2,      \
      const float* sums, const float* row_scales, int num_columns, int stride) {                          \
    aether::begin_kernel();                                                                               \
    const aether::ScaledPart<aether::dtype> parts[3] = {{out0, scales0, bias0, width0, begin0},           \
                                                        {out1, scales1, bias1, width1, begin1},           \
                                                        {out2, scales2, bias2, width2, begin2}};          \
    aether::scale_outer(parts, sums, row_scales, num_columns, stride);                                    \
  }                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) scale_outer_silu_mul_##dtype(                         \
      aether::dtype* out, const float* sums, const float* row_scales, const float* gate_scales,           \
      const float* up_scales, int width, int up_begin, int stride) {                                      \
    aether::begin_kernel();                                                                               \
    aether::scale_outer_silu_mul(out, sums, row_scales, gate_scales, up_scales, width, up_begin, stride); \
  }
AETHER_SCALE_OUTER(float16)
AETHER_SCALE_OUTER(bfloat16)
