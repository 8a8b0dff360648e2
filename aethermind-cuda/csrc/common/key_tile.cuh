// Key and value tiles in shared memory, filled from the paged cache by cp.async; tiles of a quantised cache are
// converted to float16 or bfloat16 before the mma, without their scales.
#pragma once

#include "common/async_copy.cuh"
#include "common/attention_call.cuh"
#include "common/attention_tile.cuh"

namespace aether {

// A tile of kKeys cache rows of kHeadDim elements, kStride elements apart, copied by kThreads adjacent threads in
// 16-byte pieces.
template <class Element, int kHeadDim, int kStride, int kKeys, int kThreads>
struct AsyncTile {
  static constexpr int kBytes = kKeys * kStride * static_cast<int>(sizeof(Element));
  static constexpr int kPerPiece = 16 / static_cast<int>(sizeof(Element));
  static constexpr int kPieces = kHeadDim / kPerPiece;
  static_assert(kKeys * kPieces % kThreads == 0);

  // A thread block has few registers left beside its accumulators, so its copies are unrolled less than a warp's.
  static constexpr int kUnroll = kThreads == kWarpSize ? kKeys * kPieces / kThreads : 2;

  // Issues the copies of rows [first, first + kKeys) of one or both caches to adjacent tiles. Rows from `end` on are
  // zero-filled, because a weight of 0 times uninitialised memory may be NaN.
  template <int kCaches>
  __device__ __forceinline__ static void fetch(unsigned char* tile, const void* const (&caches)[kCaches],
                                               const PagedRows& rows, int head_dim, int first, int end, int thread) {
#pragma unroll kUnroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int key = (thread + i * kThreads) / kPieces, piece = (thread + i * kThreads) % kPieces;
      const bool is_present = first + key < end && piece * kPerPiece < head_dim;
      const int64_t source = is_present ? rows(first + key) * head_dim + piece * kPerPiece : 0;
      const int target = key * kStride + piece * kPerPiece;
#pragma unroll
      for (int c = 0; c < kCaches; ++c) {
        Element* destination = reinterpret_cast<Element*>(tile + c * kBytes) + target;
        copy_async_16(destination, static_cast<const Element*>(caches[c]) + source, is_present);
      }
    }
  }
};

// Rows of T, padded for ldmatrix without bank conflicts.
template <class T, int kHeadDim, int kKeys, int kThreads>
struct FloatTile : AsyncTile<T, kHeadDim, kRowStride<kHeadDim>, kKeys, kThreads> {
  static constexpr int kStride = kRowStride<kHeadDim>;
};

// Rows of int8 or float8_e4m3fn codes, converted to T without their scales before the mma; T represents both exactly.
template <class T, int kHeadDim, int kKeys, int kThreads>
struct CodeTile : AsyncTile<unsigned char, kHeadDim, kHeadDim, kKeys, kThreads> {
  static constexpr int kPieces = kHeadDim / 16;

  static constexpr int kDequantizeUnroll = kThreads == kWarpSize ? kKeys * kPieces / kThreads : 1;

  __device__ __forceinline__ static void dequantize(T* to, const unsigned char* tile, CodeType type, int thread) {
#pragma unroll kDequantizeUnroll
    for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
      const int key = (thread + i * kThreads) / kPieces, piece = (thread + i * kThreads) % kPieces;
      const uint4 codes = *reinterpret_cast<const uint4*>(tile + key * kHeadDim + piece * 16);
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      uint32_t pairs[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t both = words[j / 2] >> (16 * (j % 2));
        pairs[j] = packed<T>(code_value(both & 0xffu, type), code_value(both >> 8 & 0xffu, type));
      }
      T* target = to + key * kRowStride<kHeadDim> + piece * 16;
      *reinterpret_cast<uint4*>(target) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      *reinterpret_cast<uint4*>(target + 8) = {pairs[4], pairs[5], pairs[6], pairs[7]};
    }
  }
};

}  // namespace aether
