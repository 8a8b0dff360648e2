// 16 outputs of a weight in codes of 8, 4, 2 or 1 bits, as Products takes them.
//
// A packed weight (`kernels/_coded.py` writes it) is, for tiles of 16 outputs one after the other:
//   codes    [tiles][groups][16 outputs][4 threads][bits] words of 32 bits
//   scales   [tiles][blocks][16 outputs] float16
//   zeros    [tiles][blocks][16 outputs] uint8, or offsets, float16
// A group is 128 inputs: four chunks of 32, of which thread t has the inputs 8t … 8t + 7. What tensor cores take as
// pair i of chunk c lies in the two halves of a word: with p = bits · (4c + i) in word p / 16 at bit p % 16, and 16
// bits higher. So one mask takes a pair out, and tensor cores multiply the codes less their zero point, which are whole
// numbers that T has; scales are applied to sums of a chunk, in float32.
#pragma once

#include "common/eight.cuh"
#include "common/products.cuh"

namespace aether {

// The difference of pairs, exact where it has to be.
template <class T>
__device__ __forceinline__ uint32_t pair_difference(uint32_t a, uint32_t b);

template <>
__device__ __forceinline__ uint32_t pair_difference<float16>(uint32_t a, uint32_t b) {
  const __half2 difference = __hsub2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
  return reinterpret_cast<const uint32_t&>(difference);
}
template <>
__device__ __forceinline__ uint32_t pair_difference<bfloat16>(uint32_t a, uint32_t b) {
  const __nv_bfloat162 difference =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const uint32_t&>(difference);
}

// The numbers 0 … 2^kBits - 1 in the low bits of this are the floats from some power of two on, in steps of one.
template <class T, int kBits>
constexpr uint32_t kMagic = 0;
template <int kBits>
constexpr uint32_t kMagic<float16, kBits> = 0x6400;  // 1024
template <int kBits>
constexpr uint32_t kMagic<bfloat16, kBits> = kBits < 8 ? 0x4300 : 0;  // 128; eight bits do not fit behind it

// Codes of a pair, less their zero point, as numbers of T.
template <class T, int kBits>
__device__ __forceinline__ uint32_t decoded_pair(uint32_t pair, uint32_t zero) {
  if constexpr (kMagic<T, kBits> != 0) {
    return pair_difference<T>(pair | kMagic<T, kBits> * 0x10001u, (zero | kMagic<T, kBits>)*0x10001u);
  } else {
    const int first = static_cast<int>(pair & 0xffff) - static_cast<int>(zero);
    const int second = static_cast<int>(pair >> 16) - static_cast<int>(zero);
    return bits_of(from_float<T>(static_cast<float>(first))) | bits_of(from_float<T>(static_cast<float>(second))) << 16;
  }
}

enum class Shift : int { kNone, kZeros, kOffsets };

template <class T, int kBits>
struct CodedWeight {
  using Element = T;
  static constexpr bool kIsScaled = true;
  static constexpr int kChunks = 4;
  static constexpr int kGroupInputs = kChunks * kChunk;
  static constexpr int kTileWords = kTileOutputs * 4 * kBits;  // of a group
  // Codes of 1 bit stand for -1 and 1: they are doubled, and the zero point is 1.
  static constexpr uint32_t kSymmetricZero = kBits == 1 ? 1 : 1u << (kBits - 1);

  struct alignas(kBits >= 4 ? 16 : 4 * kBits) Words {
    uint32_t words[kBits];
  };
  struct Group {
    Words codes[2];
    uint16_t scales[2][kChunks];
    uint16_t shifts[2][kChunks];
  };

  // Where a packed weight lies; an object of the kernel's arguments. A block of scales is 2^log2_chunks chunks, and
  // there are num_blocks of them in a row.
  struct Place {
    const uint8_t* address;
    int num_outputs;
    int num_inputs;
    int num_blocks;
    int log2_chunks;
    Shift shift;
  };

  const uint32_t* codes;
  const uint16_t* scales;
  const uint8_t* zeros;
  const uint16_t* offsets;
  int last_block;
  int log2_chunks;
  Shift shift;

  __device__ __forceinline__ CodedWeight(const Place& place, int tile)
      : last_block(place.num_blocks - 1), log2_chunks(place.log2_chunks), shift(place.shift) {
    const int num_tiles = (place.num_outputs + kTileOutputs - 1) / kTileOutputs;
    const int64_t num_groups = (place.num_inputs + kGroupInputs - 1) / kGroupInputs;
    const int64_t all_scales = static_cast<int64_t>(num_tiles) * place.num_blocks * kTileOutputs;
    tile = min(tile, num_tiles - 1);
    const int64_t own_scales = static_cast<int64_t>(tile) * place.num_blocks * kTileOutputs;
    const auto* all_codes = reinterpret_cast<const uint32_t*>(place.address);
    codes = all_codes + tile * num_groups * kTileWords + lane_index() * kBits;
    const auto* first_scale = reinterpret_cast<const uint16_t*>(all_codes + num_tiles * num_groups * kTileWords);
    scales = first_scale + own_scales;
    offsets = first_scale + all_scales + own_scales;
    zeros = reinterpret_cast<const uint8_t*>(first_scale + all_scales) + own_scales;
  }

  __device__ __forceinline__ Group load(int group) const {
    Group result;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* words = codes + static_cast<int64_t>(group) * kTileWords + half * (kTileWords / 2);
      if constexpr (kBits >= 4) {
#pragma unroll
        for (int i = 0; i < kBits; i += 4) {
          reinterpret_cast<uint4&>(result.codes[half].words[i]) = *reinterpret_cast<const uint4*>(words + i);
        }
      } else if constexpr (kBits == 2) {
        reinterpret_cast<uint2&>(result.codes[half].words[0]) = *reinterpret_cast<const uint2*>(words);
      } else {
        result.codes[half].words[0] = *words;
      }
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        // A last group may reach beyond the row, where inputs are zero.
        const int block = min((group * kChunks + chunk) >> log2_chunks, last_block);
        const int position = block * kTileOutputs + half * 8 + lane_index() / 4;
        result.scales[half][chunk] = scales[position];
        result.shifts[half][chunk] = 0;
        if (shift == Shift::kZeros) {
          result.shifts[half][chunk] = zeros[position];
        } else if (shift == Shift::kOffsets) {
          result.shifts[half][chunk] = offsets[position];
        }
      }
    }
    return result;
  }

  __device__ __forceinline__ Eight<T> weights(const Group& group, int half, int chunk) const {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    uint32_t zero = shift == Shift::kNone ? kSymmetricZero : 0;
    if (shift == Shift::kZeros) {
      zero = group.shifts[half][chunk];
    }
    Eight<T> result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = kBits * (4 * chunk + i);
      uint32_t pair = group.codes[half].words[place / 16] >> (place % 16) & kMask;
      if constexpr (kBits == 1) {
        pair <<= 1;
      }
      if constexpr (sizeof(T) == 4) {
        result.values[2 * i] = static_cast<float>(static_cast<int>(pair & 0xffff) - static_cast<int>(zero));
        result.values[2 * i + 1] = static_cast<float>(static_cast<int>(pair >> 16) - static_cast<int>(zero));
      } else {
        result.pairs[i] = decoded_pair<T, kBits>(pair, zero);
      }
    }
    return result;
  }

  __device__ __forceinline__ Scaling scaling(const Group& group, int chunk) const {
    Scaling result;
    result.has_offset = shift == Shift::kOffsets;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      result.scales[half] = __half2float(__ushort_as_half(group.scales[half][chunk]));
      result.offsets[half] = result.has_offset ? __half2float(__ushort_as_half(group.shifts[half][chunk])) : 0.0f;
    }
    return result;
  }
};

}  // namespace aether
