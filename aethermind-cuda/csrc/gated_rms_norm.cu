// gated_rms_norm: y / sqrt(mean(y²) + eps) * weight, in float32, over each group of a row, where y is x * silu(gate);
// or y is x, and the result is multiplied by silu(gate). Some lanes of a warp process a narrow group, a block a wide
// one.

#include "common/activations.cuh"
#include "common/dependent_launch.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

// The layout of `_GatedRmsNorm` in kernels/norms.py.
struct GatedRmsNorm {
  void* out;           // [R, num_groups, width]; may be x
  const void* x;       // the same
  const void* gate;    // the same
  const void* weight;  // [num_groups, width]
  float eps;
  int num_rows;
  int num_groups;
  int width;
  int is_norm_first;
  int num_lanes;  // that process a group, a power of two; 0: a block
};

// Sums over `num_lanes` lanes side by side.
__device__ __forceinline__ float sum_of_lanes(float value, int num_lanes) {
  for (int distance = num_lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, distance);
  }
  return value;
}

// `index` is that of a group among all, `thread` one of `num_threads` that process it. Threads of no group have width
// 0.
template <class T, int N>
__device__ __forceinline__ void gated_rms_norm_of(const GatedRmsNorm& call, int index, int thread, int num_threads,
                                                  int width) {
  const int64_t offset = static_cast<int64_t>(index) * call.width;
  const T* x = static_cast<const T*>(call.x) + offset;
  const T* gate = static_cast<const T*>(call.gate) + offset;
  const T* weight = static_cast<const T*>(call.weight) + static_cast<int64_t>(index % call.num_groups) * call.width;
  T* out = static_cast<T*>(call.out) + offset;
  const int first = thread * N, step = num_threads * N;
  const bool is_norm_first = call.is_norm_first != 0;
  Vector<T, N> first_values{}, first_gates{};  // kept in registers, so that they are not loaded again
  float squares = 0.0f;
  for (int i = first; i < width; i += step) {
    const auto values = Vector<T, N>::load(x + i), gates = Vector<T, N>::load(gate + i);
    first_values = i == first ? values : first_values;
    first_gates = i == first ? gates : first_gates;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float factor = is_norm_first ? 1.0f : silu_for<T>(to_float(gates.values[j]));
      const float value = to_float(values.values[j]) * factor;
      squares += value * value;
    }
  }
  const float sum = call.num_lanes != 0 ? sum_of_lanes(squares, call.num_lanes) : block_reduce<Sum>(squares);
  const float scale = rsqrtf(sum / static_cast<float>(call.width) + call.eps);
  for (int i = first; i < width; i += step) {
    const auto values = i == first ? first_values : Vector<T, N>::load(x + i);
    const auto gates = i == first ? first_gates : Vector<T, N>::load(gate + i);
    const auto weights = Vector<T, N>::load(weight + i);
    Vector<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gated = to_float(values.values[j]) * silu_for<T>(to_float(gates.values[j]));
      result.values[j] = from_float<T>(gated * scale * to_float(weights.values[j]));
    }
    result.store(out + i);
  }
}

template <class T>
__device__ __forceinline__ void gated_rms_norm(const GatedRmsNorm& call) {
  const unsigned num_threads = call.num_lanes != 0 ? static_cast<unsigned>(call.num_lanes) : blockDim.x;
  const int index = static_cast<int>(blockIdx.x * (blockDim.x / num_threads) + threadIdx.x / num_threads);
  const int thread = static_cast<int>(threadIdx.x % num_threads);
  const int width = index < call.num_rows * call.num_groups ? call.width : 0;
  if (is_vectorizable(static_cast<const T*>(call.x), call.width) &&
      is_vectorizable(static_cast<const T*>(call.gate), call.width) &&
      is_vectorizable(static_cast<const T*>(call.weight), call.width) &&
      is_vectorizable(static_cast<const T*>(call.out), call.width)) {
    gated_rms_norm_of<T, Vector<T>::size>(call, index, thread, static_cast<int>(num_threads), width);
  } else {
    gated_rms_norm_of<T, 1>(call, index, thread, static_cast<int>(num_threads), width);
  }
}

}  // namespace aether

#define AETHER_GATED_RMS_NORM(dtype)                                             \
  extern "C" __global__ void gated_rms_norm_##dtype(aether::GatedRmsNorm call) { \
    aether::begin_kernel();                                                      \
    aether::gated_rms_norm<aether::dtype>(call);                                 \
  }
AETHER_FOR_EACH_FLOAT(AETHER_GATED_RMS_NORM)
