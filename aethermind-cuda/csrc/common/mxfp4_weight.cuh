// A tile of 16 outputs of a weight in mxfp4 (OCP Microscaling Formats 1.0): the weight operand of WarpAccumulator.
//
// Codes are packed as 4-bit codes are (common/quantized_weight.cuh). Each is an element E2M1: a sign, two bits of an
// exponent and one of a mantissa. The scale of 32 inputs is a power of two, stored as its biased exponent, a byte:
//   exponents [tiles][groups][8 outputs][4 chunks][2] uint8: those of outputs g and g + 8
#pragma once

#include "common/quantized_weight.cuh"

namespace aether {

// The product of two pairs of T.
template <class T>
__device__ __forceinline__ uint32_t pair_product(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, float16>) {
    const __half2 pair = __hmul2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Two elements E2M1 at bits kBit and kBit + 16 of a word as a pair of T, times a factor. Their exponent and mantissa,
// moved to those of T, are their magnitude times 2^-126 (bfloat16) or 2^-14 (float16), subnormals included.
template <class T, int kBit>
__device__ __forceinline__ uint32_t scaled_e2m1_pair(uint32_t word, uint32_t factor) {
  constexpr int kMagnitudeBit = std::is_same_v<T, float16> ? 9 : 6, kUp = kMagnitudeBit - kBit;
  constexpr uint32_t kMagnitude = (7u << kMagnitudeBit) * 0x10001u;
  const uint32_t signs = (word << (12 - kBit)) & 0x80008000u;
  uint32_t moved = word;
  if constexpr (kUp > 0) {
    moved = word << kUp;
  } else if constexpr (kUp < 0) {
    moved = word >> -kUp;
  }
  return pair_product<T>(masked_or(moved, kMagnitude, signs), factor);
}

// The factor of elements themselves.
template <class T>
constexpr uint32_t kE2m1Factor = std::is_same_v<T, float16> ? 0x74007400u : 0x7e807e80u;

template <class T, int kBit>
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t word) {
  return scaled_e2m1_pair<T, kBit>(word, kE2m1Factor<T>);
}

__device__ __forceinline__ float e2m1_value(uint32_t code) {
  return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
}

// 2^(exponent - 127), a subnormal number for 0.
__device__ __forceinline__ float power_of_two(uint32_t exponent) {
  return __uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23);
}

template <class T>
struct Mxfp4Weight : QuantizedWeight<T, 4, AffineTerm::kNone> {
  using Base = QuantizedWeight<T, 4, AffineTerm::kNone>;
  using typename Base::Group;
  using typename Base::Params;

  const uint2* exponents;  // of this thread's outputs, a vector for each group

  __device__ __forceinline__ Mxfp4Weight(const Params& params, int tile) : Base(params, tile) {
    const int num_tiles = (params.num_outputs + kTileOutputs - 1) / kTileOutputs;
    const int64_t num_groups = (params.num_inputs + Base::kGroupInputs - 1) / Base::kGroupInputs;
    const auto* all_codes = reinterpret_cast<const uint32_t*>(params.address);
    exponents = reinterpret_cast<const uint2*>(all_codes + num_tiles * num_groups * Base::kTileWords) +
                (min(tile, num_tiles - 1) * num_groups * 8 + lane_index() / 4);
  }

  __device__ __forceinline__ Group load(int group) const {
    Group result;
    Base::load_codes(result, this->codes + static_cast<int64_t>(group) * Base::kTileWords);
    const uint2 loaded = exponents[static_cast<int64_t>(group) * 8];
    result.scales[0] = loaded.x;
    result.scales[2] = loaded.y;
    return result;
  }

  __device__ __forceinline__ Frag8<T> weights(const Group& group, int half, int chunk) const {
    Frag8<T> result;
    const uint32_t* const words = group.codes[half].words + chunk;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kFrag8Values; ++i) {
        result.values[i] = e2m1_value(*words >> (i / 2 * 4 + i % 2 * 16));
      }
    } else {
      result.pairs[0] = e2m1_pair<T, 0>(*words);
      result.pairs[1] = e2m1_pair<T, 4>(*words);
      result.pairs[2] = e2m1_pair<T, 8>(*words);
      result.pairs[3] = e2m1_pair<T, 12>(*words);
    }
    return result;
  }

  __device__ __forceinline__ Scaling scaling(const Group& group, int chunk) const {
    const uint32_t both = group.scales[chunk / 2 * 2] >> (chunk % 2 * 16);
    // There are no offsets. The compiler does not know this; otherwise it would delay the sums of products, for which
    // there are not enough registers.
    const bool has_offset = this->term == AffineTerm::kOffsets;
    return {{power_of_two(both & 0xff), power_of_two(both >> 8 & 0xff)}, {0.0f, 0.0f}, has_offset};
  }
};

}  // namespace aether
