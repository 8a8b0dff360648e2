// One head of one token (up to 256 elements) in the registers of a warp: QK norm, rotary embedding (RoPE) and
// quantisation to 8 bits.
#pragma once

#include "common/kv_quantization.cuh"
#include "common/reduce.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kMaxHeadDim = 256;

// A head of up to 256 elements, of which the first `rotary_dim` are rotated. Lane l holds pairs l, l + 32, …: elements
// (p, p + half) of the rotated part, or (2p, 2p + 1) when interleaved, so that a rotation is local to a lane; then
// pairs of the rest. With an odd head_dim the last pair has no second element.
struct HeadRow {
  static constexpr int kPairs = kMaxHeadDim / 2 / kWarpSize;

  float first[kPairs];
  float second[kPairs];
  int head_dim;
  int rotary_dim;
  bool is_interleaved;

  __device__ __forceinline__ HeadRow(int head_dim, int rotary_dim, bool is_interleaved)
      : head_dim(head_dim), rotary_dim(rotary_dim), is_interleaved(is_interleaved) {}

  // Calls `use(pair, index of the first element, index of the second, register slot)` for each pair of this lane.
  template <typename Use>
  __device__ __forceinline__ void each(Use use) {
    const int pairs = (head_dim + 1) / 2, rotated = rotary_dim / 2, others = pairs - rotated;
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) {
      const int pair = lane_index() + kWarpSize * slot;
      const int first_index = is_interleaved ? 2 * pair : pair < rotated ? pair : rotated + pair;
      const int distance = is_interleaved ? 1 : pair < rotated ? rotated : others;
      if (pair < pairs) use(pair, first_index, first_index + distance, slot);
    }
  }

  template <typename Read>
  __device__ __forceinline__ void read(Read element) {
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) first[slot] = second[slot] = 0.0f;
    each([&](int, int i, int j, int slot) {
      first[slot] = element(i);
      if (j < head_dim) second[slot] = element(j);
    });
  }

  template <typename Write>
  __device__ __forceinline__ void write(Write element) {
    each([&](int, int i, int j, int slot) {
      element(i, first[slot]);
      if (j < head_dim) element(j, second[slot]);
    });
  }

  // x / sqrt(mean(x²) + eps) · (offset + weight).
  template <typename T>
  __device__ __forceinline__ void normalize(const T* weight, float eps, float offset) {
    float sum = 0.0f;
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) sum += first[slot] * first[slot] + second[slot] * second[slot];
    const float inverse = rsqrtf(warp_reduce<Sum>(sum) / static_cast<float>(head_dim) + eps);
    each([&](int, int i, int j, int slot) {
      first[slot] *= inverse * (offset + to_float(weight[i]));
      if (j < head_dim) second[slot] *= inverse * (offset + to_float(weight[j]));
    });
  }

  // `table` is [cosines | sines] of the row's position, `rotary_dim` in all.
  __device__ __forceinline__ void rotate(const float* table) {
    each([&](int pair, int, int, int slot) {
      if (pair >= rotary_dim / 2) return;
      const float cosine = table[pair], sine = table[rotary_dim / 2 + pair];
      const float x = first[slot], y = second[slot];
      first[slot] = x * cosine - y * sine;
      second[slot] = y * cosine + x * sine;
    });
  }

  // Quantises the row and writes its codes; returns the scale, which the caller stores.
  __device__ __forceinline__ float write_codes(uint8_t* codes, CodeType type) {
    float largest = 0.0f;
    bool is_finite = true;
#pragma unroll
    for (int slot = 0; slot < kPairs; ++slot) {
      largest = fmaxf(largest, fmaxf(fabsf(first[slot]), fabsf(second[slot])));
      is_finite = is_finite && isfinite(first[slot]) && isfinite(second[slot]);
    }
    if (!is_finite) largest = __builtin_huge_valf();
    const CodeScale scale = code_scale(warp_reduce<Max>(largest), type);
    write([&](int i, float x) {
      codes[i] = scale.inverse == 0.0f ? 0 : nearest_code(__fmul_rn(x, scale.inverse), type);
    });
    return scale.scale;
  }
};

}  // namespace aether
