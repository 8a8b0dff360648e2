// Element-wise operators: exp, log, cast, relu, silu, gelu, scale, clamp, softcap, add, sub, mul, div, silu_mul,
// sigmoid_mul, clamped_silu_mul and gelu_mul on arrays of one shape, add, sub, mul and div on arrays that are
// broadcast, and silu_mul of the halves of rows. They compute in float32 and round once; the result may alias the first
// array.

#include "common/activations.cuh"
#include "common/dependent_launch.cuh"
#include "common/loops.cuh"
#include "common/types.cuh"

namespace aether {

struct Exp {
  __device__ __forceinline__ static float of(float x) { return expf(x); }
};
struct Log {
  __device__ __forceinline__ static float of(float x) { return logf(x); }
};
struct Relu {
  __device__ __forceinline__ static float of(float x) { return x > 0.0f ? x : (x != x ? x : 0.0f); }
};
struct Silu {
  __device__ __forceinline__ static float of(float x) { return silu(x); }
};
struct Gelu {
  __device__ __forceinline__ static float of(float x) { return gelu(x); }
};
struct GeluTanh {
  __device__ __forceinline__ static float of(float x) { return gelu_tanh(x); }
};
struct Add {
  __device__ __forceinline__ static float of(float a, float b) { return a + b; }
};
struct Sub {
  __device__ __forceinline__ static float of(float a, float b) { return a - b; }
};
struct Mul {
  __device__ __forceinline__ static float of(float a, float b) { return a * b; }
};
struct Div {
  __device__ __forceinline__ static float of(float a, float b) { return a / b; }
};
template <class T>
struct SiluMul {
  __device__ __forceinline__ static float of(float a, float b) { return silu_for<T>(a) * b; }
};

template <class T>
struct SigmoidMul {
  __device__ __forceinline__ static float of(float gate, float x) { return sigmoid_for<T>(gate) * x; }
};

struct Scale {
  float factor;
  __device__ __forceinline__ float of(float x) const { return x * factor; }
};
struct Clamp {
  float limit;
  __device__ __forceinline__ float of(float x) const { return x > limit ? limit : x < -limit ? -limit : x; }
};
struct Softcap {
  float cap;
  __device__ __forceinline__ float of(float x) const { return softcap(x, cap); }
};
// silu_mul with a slope of the sigmoid, bounds of both inputs where limit > 0, and an offset of the second.
struct ClampedSiluMul {
  float alpha;
  float limit;
  float up_offset;
  __device__ __forceinline__ float of(float gate, float up) const {
    if (limit > 0.0f) {
      gate = gate > limit ? limit : gate;
      up = up > limit ? limit : (up < -limit ? -limit : up);
    }
    return gate / (1.0f + expf(-alpha * gate)) * (up + up_offset);
  }
};
// Calls body(begin) for every N elements from `first` on that are whole within `count`.
template <int N, class Body>
__device__ __forceinline__ void for_each_vector(int64_t first, int64_t count, const Body& body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first + thread * N; i + N <= count; i += step) {
    body(i);
  }
}

template <int N, class Operation, class T, class... Arrays>
__device__ __forceinline__ void map_vectors(const Operation& operation, T* out, int64_t first, int64_t count,
                                            const Arrays*... arrays) {
  for_each_vector<N>(first, count, [=](int64_t i) {
    const auto apply = [&](const auto&... vectors) {
      Vector<T, N> result;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        result.values[j] = from_float<T>(operation.of(to_float(vectors.values[j])...));
      }
      result.store(out + i);
    };
    apply(Vector<T, N>::load(arrays + i)...);
  });
}

template <class Operation, class T, class... Arrays>
__device__ __forceinline__ void map(const Operation& operation, T* out, int64_t count, const Arrays*... arrays) {
  if (is_vectorizable(out, 0) && (is_vectorizable(arrays, 0) && ...)) {
    constexpr int kWide = Vector<T>::size;
    map_vectors<kWide>(operation, out, 0, count, arrays...);
    map_vectors<1>(operation, out, count - count % kWide, count, arrays...);
  } else {
    map_vectors<1>(operation, out, 0, count, arrays...);
  }
}

// Elements of `a` and `b` by the strides of `loops`.
template <class Operation, class T>
__device__ __forceinline__ void map_broadcast(const Operation& operation, T* out, int64_t count, const T* a, const T* b,
                                              const Loops<2>& loops) {
  for_each_vector<1>(0, count, [=](int64_t i) {
    const Offsets<2> element = offsets_of(loops, i);
    out[i] = from_float<T>(operation.of(to_float(a[element.of[0]]), to_float(b[element.of[1]])));
  });
}

// Elements of x in another type, as many at a time as the wider one has in a vector.
template <class To, class From>
__device__ __forceinline__ void cast(To* out, const From* x, int64_t count) {
  constexpr int kWide = Vector<To>::size < Vector<From>::size ? Vector<To>::size : Vector<From>::size;
  const bool is_aligned = is_vectorizable(out, 0) && is_vectorizable(x, 0);
  const int64_t wide = is_aligned ? count - count % kWide : 0;
  for_each_vector<kWide>(0, wide, [=](int64_t i) {
    const auto vector = Vector<From, kWide>::load(x + i);
    Vector<To, kWide> result;
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      result.values[j] = from_float<To>(to_float(vector.values[j]));
    }
    result.store(out + i);
  });
  for_each_vector<1>(wide, count, [=](int64_t i) { out[i] = from_float<To>(to_float(x[i])); });
}

template <class T, int N>
__device__ __forceinline__ void silu_mul_vectors(T* out, const T* gate, const T* up, int width) {
  const int step = static_cast<int>(gridDim.x * blockDim.x) * N;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N; i < width; i += step) {
    const auto a = Vector<T, N>::load(gate + i), b = Vector<T, N>::load(up + i);
    Vector<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      result.values[j] = from_float<T>(SiluMul<T>::of(to_float(a.values[j]), to_float(b.values[j])));
    }
    result.store(out + i);
  }
}

// out[t, i] = silu(x[t, i]) · x[t, width + i], for a stacked gate and up projection. The row is blockIdx.y.
template <class T>
__device__ __forceinline__ void silu_mul_halves(T* out, const T* x, int width) {
  const int64_t row = blockIdx.y;
  const T* gate = x + row * 2 * width;
  if (is_vectorizable(x, width) && is_vectorizable(out, width)) {
    silu_mul_vectors<T, Vector<T>::size>(out + row * width, gate, gate + width, width);
  } else {
    silu_mul_vectors<T, 1>(out + row * width, gate, gate + width, width);
  }
}

}  // namespace aether

#define AETHER_UNARY(name, operation, dtype)                                                                           \
  extern "C" __global__ void elementwise_##name##_##dtype(aether::dtype* out, const aether::dtype* x, int64_t count) { \
    aether::begin_kernel();                                                                                            \
    aether::map(aether::operation{}, out, count, x);                                                                   \
  }
#define AETHER_BINARY(name, operation, dtype)                                                         \
  extern "C" __global__ void elementwise_##name##_##dtype(aether::dtype* out, const aether::dtype* a, \
                                                          const aether::dtype* b, int64_t count) {    \
    aether::begin_kernel();                                                                           \
    aether::map(aether::operation{}, out, count, a, b);                                               \
  }
#define AETHER_BROADCAST(name, operation, dtype)                                                                   \
  extern "C" __global__ void elementwise_##name##_broadcast_##dtype(                                               \
      aether::dtype* out, const aether::dtype* a, const aether::dtype* b, int64_t count, aether::Loops<2> loops) { \
    aether::begin_kernel();                                                                                        \
    aether::map_broadcast(aether::operation{}, out, count, a, b, loops);                                           \
  }
#define AETHER_CLAMPED_SILU_MUL(dtype)                                                                                 \
  extern "C" __global__ void elementwise_clamped_silu_mul_##dtype(aether::dtype* out, const aether::dtype* gate,       \
                                                                  const aether::dtype* up, int64_t count, float alpha, \
                                                                  float limit, float up_offset) {                      \
    aether::begin_kernel();                                                                                            \
    aether::map(aether::ClampedSiluMul{alpha, limit, up_offset}, out, count, gate, up);                                \
  }
#define AETHER_WITH_FACTOR(name, operation, dtype)                                                                   \
  extern "C" __global__ void elementwise_##name##_##dtype(aether::dtype* out, const aether::dtype* x, int64_t count, \
                                                          float factor) {                                            \
    aether::begin_kernel();                                                                                          \
    aether::map(aether::operation{factor}, out, count, x);                                                           \
  }
#define AETHER_CAST(to, from)                                                                          \
  extern "C" __global__ void elementwise_cast_##from##_to_##to(aether::to* out, const aether::from* x, \
                                                               int64_t count) {                        \
    aether::begin_kernel();                                                                            \
    aether::cast(out, x, count);                                                                       \
  }
#define AETHER_SILU_MUL_HALVES(dtype)                                                                        \
  extern "C" __global__ void elementwise_silu_mul_halves_##dtype(aether::dtype* out, const aether::dtype* x, \
                                                                 int width) {                                \
    aether::begin_kernel();                                                                                  \
    aether::silu_mul_halves(out, x, width);                                                                  \
  }
#define AETHER_ELEMENTWISE(dtype)                              \
  AETHER_UNARY(exp, Exp, dtype)                                \
  AETHER_UNARY(log, Log, dtype)                                \
  AETHER_UNARY(relu, Relu, dtype)                              \
  AETHER_UNARY(silu, Silu, dtype)                              \
  AETHER_UNARY(gelu, Gelu, dtype)                              \
  AETHER_UNARY(gelu_tanh, GeluTanh, dtype)                     \
  AETHER_BINARY(add, Add, dtype)                               \
  AETHER_BINARY(sub, Sub, dtype)                               \
  AETHER_BINARY(mul, Mul, dtype)                               \
  AETHER_BINARY(div, Div, dtype)                               \
  AETHER_BROADCAST(add, Add, dtype)                            \
  AETHER_BROADCAST(sub, Sub, dtype)                            \
  AETHER_BROADCAST(mul, Mul, dtype)                            \
  AETHER_BROADCAST(div, Div, dtype)                            \
  AETHER_BINARY(silu_mul, SiluMul<aether::dtype>, dtype)       \
  AETHER_BINARY(sigmoid_mul, SigmoidMul<aether::dtype>, dtype) \
  AETHER_WITH_FACTOR(scale, Scale, dtype)                      \
  AETHER_WITH_FACTOR(clamp, Clamp, dtype)                      \
  AETHER_WITH_FACTOR(softcap, Softcap, dtype)                  \
  AETHER_CLAMPED_SILU_MUL(dtype)                               \
  AETHER_CAST(float32, dtype)                                  \
  AETHER_CAST(float16, dtype)                                  \
  AETHER_CAST(bfloat16, dtype)                                 \
  AETHER_SILU_MUL_HALVES(dtype)
AETHER_FOR_EACH_FLOAT(AETHER_ELEMENTWISE)
