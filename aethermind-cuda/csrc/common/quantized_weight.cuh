// A tile of 16 outputs of a quantised weight (8, 4, 2 or 1 bits): the weight operand of WarpAccumulator.
//
// `quantized_weights.py` packs a weight as a sequence of tiles of 16 outputs:
//   codes    [tiles][groups][16 outputs][4 threads][bits] words of 32 bits
//   scales   [tiles][scale vectors][8 outputs][blocks of a vector][2] float16: the scales of outputs g and g + 8
//   zeros    zero points in the same order, uint8; or offsets, float16
// A group is 128 inputs: four chunks of 32, of which thread t holds inputs 8t … 8t + 7. A scale vector is the four
// scale blocks of a group where a block is 32 inputs, so that a thread loads all scales of a group at once; otherwise
// one block. Pair i of chunk c is stored in the two halves of a word: with p = bits · (4c + i), at bit p % 16 of word p
// / 16 and 16 bits higher. One mask extracts a pair. Tensor cores multiply codes minus zero points, integers that T
// represents exactly; scales are applied to the float32 accumulators of a chunk.
#pragma once

#include "common/frag8.cuh"
#include "common/mma_gemv.cuh"

namespace aether {

// a - b on packed pairs; exact for the integers used here.
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

// A power of two whose unit in the last place is 1: an integer below 2^kBits in its low bits reads as the power plus
// the integer.
template <class T, int kBits>
constexpr uint32_t kMagic = 0;
template <int kBits>
constexpr uint32_t kMagic<float16, kBits> = 0x6400;  // 1024
template <int kBits>
constexpr uint32_t kMagic<bfloat16, kBits> = kBits < 8 ? 0x4300 : 0;  // 128; its mantissa has no eight bits

// (value & mask) | bits in one lop3; with two constants the compiler emits two instructions.
__device__ __forceinline__ uint32_t masked_or(uint32_t value, uint32_t mask, uint32_t bits) {
#ifdef AETHER_EMULATED
  return (value & mask) | bits;
#else
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(value), "r"(mask), "r"(bits));
  return result;
#endif
}

// Converts a pair of codes minus their zero point to T.
template <class T, int kBits>
__device__ __forceinline__ uint32_t centered_pair(uint32_t pair, uint32_t zero) {
  if constexpr (kMagic<T, kBits> != 0) {
    return pair_difference<T>(pair | kMagic<T, kBits> * 0x10001u, (zero | kMagic<T, kBits>)*0x10001u);
  } else {
    // By float32 with 2^23: integer conversion instructions have a low throughput.
    constexpr uint32_t kMagicFloat = 0x4b000000u;
    const float base = __uint_as_float(kMagicFloat | zero);
    return packed<T>(__uint_as_float(kMagicFloat | (pair & 0xffff)) - base,
                     __uint_as_float(kMagicFloat | pair >> 16) - base);
  }
}

// The affine term of a format: none (symmetric), zero points or offsets. kRuntime reads it from the kernel's arguments.
enum class AffineTerm : int { kNone, kZeroPoints, kOffsets, kRuntime };

// Scale blocks of a row, padded to whole scale vectors.
__device__ __forceinline__ int64_t padded_blocks(int num_blocks, bool is_chunk_block) {
  return is_chunk_block ? (num_blocks + 3) / 4 * 4 : num_blocks;
}

// The low (0) or high (1) float16 of a word.
__device__ __forceinline__ float half_of(uint32_t pair, int half) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(pair >> (16 * half))));
}

template <class T, int kBits, AffineTerm kTerm>
struct QuantizedWeight {
  using Element = T;
  static constexpr bool kIsScaled = true;
  static constexpr int kChunks = 4;
  static constexpr int kGroupInputs = kChunks * kChunk;
  static constexpr int kTileWords = kTileOutputs * 4 * kBits;  // of a group
  static constexpr int kLaneWords = kBits;                     // a thread's, of a group, for one of its two outputs
  // 1-bit codes mean -1 and 1: 2 · code - 1.
  static constexpr uint32_t kSymmetricZero = kBits == 1 ? 1 : 1u << (kBits - 1);

  struct alignas(kBits >= 4 ? 16 : 4 * kBits) Words {
    uint32_t words[kBits];
  };
  // By chunk: the scales of both outputs, and their offsets (float16) or zero points (uint8), output g in the low half.
  struct Group {
    Words codes[2];
    uint32_t scales[kChunks];
    uint32_t terms[kTerm == AffineTerm::kNone ? 1 : kChunks];
  };

  // A packed weight as a kernel argument. A scale block is 2^log2_chunks chunks; a row has num_blocks of them.
  struct Params {
    const uint8_t* address;
    int num_outputs;
    int num_inputs;
    int num_blocks;
    int log2_chunks;
    AffineTerm term;
  };

  const uint32_t* codes;
  const uint32_t* scales;
  const uint16_t* zeros;
  const uint32_t* offsets;
  int last_block;
  int log2_chunks;
  AffineTerm term;

  __device__ __forceinline__ QuantizedWeight(const Params& params, int tile)
      : last_block(params.num_blocks - 1), log2_chunks(params.log2_chunks), term(params.term) {
    const int num_tiles = (params.num_outputs + kTileOutputs - 1) / kTileOutputs;
    const int64_t num_groups = (params.num_inputs + kGroupInputs - 1) / kGroupInputs;
    // Scales of a tile, counted in pairs (32-bit words).
    const int64_t tile_scales = padded_blocks(params.num_blocks, params.log2_chunks == 0) * (kTileOutputs / 2);
    tile = min(tile, num_tiles - 1);
    const auto* all_codes = reinterpret_cast<const uint32_t*>(params.address);
    codes = all_codes + tile * num_groups * kTileWords + lane_index() * kLaneWords;
    const uint32_t* first_scale = all_codes + num_tiles * num_groups * kTileWords;
    const uint32_t* first_term = first_scale + num_tiles * tile_scales;
    scales = first_scale + tile * tile_scales;
    offsets = first_term + tile * tile_scales;
    zeros = reinterpret_cast<const uint16_t*>(first_term) + tile * tile_scales;
  }

  __device__ __forceinline__ bool has(AffineTerm which) const {
    return (kTerm == AffineTerm::kRuntime ? term : kTerm) == which;
  }

  __device__ __forceinline__ Group load(int group) const {
    Group result;
    load_codes(result, codes + static_cast<int64_t>(group) * kTileWords);
    load_scales(result, group);
    return result;
  }

  // The codes of this tile; those of a group are contiguous.
  __device__ __forceinline__ const uint32_t* tile_codes() const { return codes - lane_index() * kLaneWords; }

  // Loads this thread's codes of a group.
  __device__ __forceinline__ static void load_codes(Group& result, const uint32_t* from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* words = from + half * (kTileWords / 2);
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
    }
  }

  // Loads the scales of a group and its zero points or offsets.
  __device__ __forceinline__ void load_scales(Group& result, int group) const {
    load_pairs(result.scales, scales, group);
    if constexpr (kTerm != AffineTerm::kNone) {
      if (has(AffineTerm::kOffsets)) {
        load_pairs(result.terms, offsets, group);
      } else {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          result.terms[chunk] = has(AffineTerm::kZeroPoints) ? zeros[pair_of(group, chunk)] : 0;
        }
      }
    }
  }

  // Index of a chunk's scale pair, clamped to the row: inputs beyond it are zero.
  __device__ __forceinline__ int pair_of(int group, int chunk) const {
    const int row = lane_index() / 4;
    return log2_chunks == 0 ? (group * 8 + row) * kChunks + chunk
                            : min((group * kChunks + chunk) >> log2_chunks, last_block) * 8 + row;
  }

  __device__ __forceinline__ void load_pairs(uint32_t (&pairs)[kChunks], const uint32_t* from, int group) const {
    if (log2_chunks == 0) {
      const uint4 loaded = *reinterpret_cast<const uint4*>(from + pair_of(group, 0));
      pairs[0] = loaded.x;
      pairs[1] = loaded.y;
      pairs[2] = loaded.z;
      pairs[3] = loaded.w;
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        pairs[chunk] = from[pair_of(group, chunk)];
      }
    }
  }

  __device__ __forceinline__ Frag8<T> weights(const Group& group, int half, int chunk) const {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x10001u;
    uint32_t zero = has(AffineTerm::kNone) ? kSymmetricZero : 0;
    if constexpr (kTerm != AffineTerm::kNone) {
      if (has(AffineTerm::kZeroPoints)) {
        zero = group.terms[chunk] >> (8 * half) & 0xff;
      }
    }
    Frag8<T> result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int bit = kBits * (4 * chunk + i);
      const uint32_t word = group.codes[half].words[bit / 16] >> (bit % 16);
      if constexpr (sizeof(T) == 2 && kBits > 1 && kMagic<T, kBits> != 0) {
        constexpr uint32_t kPairs = kMagic<T, kBits> * 0x10001u;
        result.pairs[i] = pair_difference<T>(masked_or(word, kMask, kPairs), zero * 0x10001u | kPairs);
        continue;
      }
      uint32_t pair = word & kMask;
      if constexpr (kBits == 1) {
        pair <<= 1;
      }
      if constexpr (sizeof(T) == 4) {
        result.values[2 * i] = static_cast<float>(static_cast<int>(pair & 0xffff) - static_cast<int>(zero));
        result.values[2 * i + 1] = static_cast<float>(static_cast<int>(pair >> 16) - static_cast<int>(zero));
      } else {
        result.pairs[i] = centered_pair<T, kBits>(pair, zero);
      }
    }
    return result;
  }

  __device__ __forceinline__ Scaling scaling(const Group& group, int chunk) const {
    Scaling result;
    result.has_offset = has(AffineTerm::kOffsets);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      result.scales[half] = half_of(group.scales[chunk], half);
      result.offsets[half] = 0.0f;
      if constexpr (kTerm != AffineTerm::kNone) {
        result.offsets[half] = has(AffineTerm::kOffsets) ? half_of(group.terms[chunk], half) : 0.0f;
      }
    }
    return result;
  }
};

}  // namespace aether
