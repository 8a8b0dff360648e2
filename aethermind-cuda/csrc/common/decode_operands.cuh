// Key and value operands of the decode kernel: a warp multiplies 16 keys by tiles of 8 query rows.
//
// Products are transposed: keys (or elements of values) are the 16 rows of A, query rows the 8 columns of B. A group
// seldom has more than 8 heads, so the other orientation would waste half of each mma.
//
// With lane = 4 g + i, scores are those of keys g (c[0], c[1]) and g + 8 (c[2], c[3]) with rows 2i and 2i + 1.
#pragma once

#include "common/attention_tile.cuh"
#include "common/dequantize_pair.cuh"

namespace aether {

constexpr int kDecodeKeys = 16;  // per warp and step
constexpr int kTileRows = 8;     // the columns of B

// Transposes an 8 x 8 matrix held in pairs: lane 4 g + i holds elements 2i, 2i + 1 of row g.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
#ifdef AETHER_EMULATED
  const int g = lane_index() / 4, i = lane_index() % 4;
  const uint32_t first = __shfl_sync(kFullWarp, pair, 8 * i + g / 2);
  const uint32_t second = __shfl_sync(kFullWarp, pair, 8 * i + 4 + g / 2);
  return __byte_perm(first, second, g % 2 == 0 ? 0x5410 : 0x7632);
#else
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
#endif
}

// Unquantised operands, loaded by ldmatrix.
template <class T, int kHeadDim>
struct FloatOperands {
  using Element = T;
  static constexpr int kStride = kRowStride<kHeadDim>;
  static constexpr int kStages = 1;  // other warps hide the latency of a warp's loads

  // B fragments of elements 32d … 32d + 31, for two mma.
  __device__ __forceinline__ static void load_queries(uint32_t (&b)[4], const T* queries, int d) {
    load_matrices(b, queries + lane_index() % 8 * kRowStride<kHeadDim> + 32 * d + lane_index() / 8 * 8);
  }

  // A fragments of the same elements of all keys.
  __device__ __forceinline__ static void load_keys(uint32_t (&a)[2][4], const T* keys, int d) {
    const T* lane_source = keys + lane_index() % 16 * kStride + 32 * d + lane_index() / 16 * 8;
    load_matrices(a[0], lane_source);
    load_matrices(a[1], lane_source + 16);
  }

  // Index of the value element in the `n`-th accumulators of thread 4 g + i: row g in c[0], c[1], row g + 8 in c[2],
  // c[3].
  __device__ __forceinline__ static int dim(int n, int half) { return 16 * n + 8 * half + lane_index() / 4; }

  // The A fragment of 16 elements of values.
  struct Values {
    const T* lane_source;
    __device__ __forceinline__ explicit Values(const T* values)
        : lane_source(values + (lane_index() % 8 + lane_index() / 16 * 8) * kStride + lane_index() / 8 % 2 * 8) {}
    __device__ __forceinline__ void load(uint32_t (&a)[4], int n) const {
      load_matrices_transposed(a, lane_source + 16 * n);
    }
  };
};

// Quantised operands, dequantised in registers. The order of elements within a sum is free, so a thread holds
// contiguous ones: a quarter of keys g and g + 8, an eighth of the values of four keys.
template <class T, int kHeadDim, CodeType kType>
struct CodeOperands {
  using Element = unsigned char;
  static constexpr int kStride = kHeadDim + 16;  // no bank conflicts among the lanes of a quarter warp
  static constexpr int kStages = 2;              // codes have half the bytes, so more stages keep enough in flight
  static constexpr int kKeyElementsPerLane = kHeadDim / 4, kValueElementsPerLane = kHeadDim / 8;
  static_assert(kValueElementsPerLane == 8 || kValueElementsPerLane == 16);

  __device__ __forceinline__ static void load_queries(uint32_t (&b)[4], const T* queries, int d) {
    const T* lane_source =
        queries + lane_index() / 4 * kRowStride<kHeadDim> + lane_index() % 4 * kKeyElementsPerLane + 8 * d;
    const uint4 read = *reinterpret_cast<const uint4*>(lane_source);
    b[0] = read.x, b[1] = read.y, b[2] = read.z, b[3] = read.w;
  }

  __device__ __forceinline__ static void load_keys(uint32_t (&a)[2][4], const unsigned char* keys, int d) {
    const unsigned char* lane_source =
        keys + lane_index() / 4 * kStride + lane_index() % 4 * kKeyElementsPerLane + 8 * d;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint2 read = *reinterpret_cast<const uint2*>(lane_source + 8 * row * kStride);
      a[0][row] = dequantized_pair<T, kType>(neighbours<0>(read.x));
      a[0][2 + row] = dequantized_pair<T, kType>(neighbours<1>(read.x));
      a[1][row] = dequantized_pair<T, kType>(neighbours<0>(read.y));
      a[1][2 + row] = dequantized_pair<T, kType>(neighbours<1>(read.y));
    }
  }

  __device__ __forceinline__ static int dim(int n, int half) {
    return lane_index() / 4 * kValueElementsPerLane + 2 * n + half;
  }

  struct Values {
    uint32_t words[4][kValueElementsPerLane / 4];  // of keys 2i, 2i + 1, 2i + 8, 2i + 9
    __device__ __forceinline__ explicit Values(const unsigned char* values) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = lane_index() % 4 * 2 + k % 2 + k / 2 * 8;
        const unsigned char* lane_source = values + key * kStride + lane_index() / 4 * kValueElementsPerLane;
        if constexpr (kValueElementsPerLane == 16) {
          const uint4 read = *reinterpret_cast<const uint4*>(lane_source);
          words[k][0] = read.x, words[k][1] = read.y, words[k][2] = read.z, words[k][3] = read.w;
        } else {
          const uint2 read = *reinterpret_cast<const uint2*>(lane_source);
          words[k][0] = read.x, words[k][1] = read.y;
        }
      }
    }
    __device__ __forceinline__ void load(uint32_t (&a)[4], int n) const {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int first = r / 2 * 2, byte = 2 * n + r % 2;
        a[r] = dequantized_pair<T, kType>(byte_of_both(words[first][byte / 4], words[first + 1][byte / 4], byte % 4));
      }
    }
  };
};

}  // namespace aether
