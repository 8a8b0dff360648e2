// Products of many token-expert pairs with weights in mxfp4 by wgmma, with swapped roles: outputs are the rows of a
// product and pairs its columns. The operand of the weights is in registers: elements times their scale, which bfloat16
// holds exactly.
//
// A thread holds inputs 8t … 8t + 7 of a chunk of 32 of its codes (common/quantized_weight.cuh), in four pairs, of
// which pairs 2s and 2s + 1 are its elements of step s of 16 inputs. So inputs are rearranged as they are copied: pair
// q of piece t of a chunk becomes pair t of piece q.
//
// A product is issued for each chunk. It runs while the codes of the next chunk are decoded, into the registers of the
// product before.
#pragma once

#include "common/async_copy.cuh"
#include "common/expert_wgmma.cuh"
#include "common/mxfp4_weight.cuh"
#include "common/wgmma.cuh"

namespace aether {

constexpr int kMinMxfp4Pairs = 16;  // of a tile

// 16 rows of a warp by 128 inputs: outputs g of a tile, and outputs g + 8 of the same tile or the same outputs of
// another weight. Exponents are those of both tiles.
struct alignas(kVectorBytes) StagedMxfp4 {
  uint32_t codes[2][kWarpSize * 4];
  uint32_t exponents[2][16];
};

// A block computes 128 rows of weights for one tile of pairs: 128 outputs, or 64 of a SwiGLU.
template <class T, int kPairs, bool kGated>
struct Mxfp4Wgmma {
  static_assert(std::is_same_v<T, bfloat16>, "float16 does not hold all elements times their scale");
  static constexpr int kRows = 128;
  static constexpr int kTileOfBlock = kGated ? kRows / 2 : kRows;  // outputs
  static constexpr int kInputStages = 4;
  static constexpr int kCodeStages = 3;
  static constexpr int kStagePieces = kPairs * kPiecesOfRow;
  static constexpr int kRegisters = kPairs / 2;
  static constexpr int kHalfItems = kPairs >= 64 ? kPairs / 64 : 1;  // pieces that a thread copies at a time
  static constexpr int kHalves = kPairs >= 64 ? 2 : 1;               // times that it copies of 64 inputs
  static constexpr int kGroupOfCodes = 4 * kChunk;
  static constexpr int kTilePieces = 64;  // of 16 bytes, of a group of a tile of 16 outputs
  static constexpr int kExponentPieces = 4;
  using Piece = Vector<T>;

  const ExpertProducts& call;
  const uint32_t& code_pieces;  // of 16 bytes, of all codes of a weight
  unsigned char* stages;
  StagedMxfp4* ring;
  int num_steps;
  uint32_t input_at[kHalves * kHalfItems];  // the pieces that this thread copies of the first 64 inputs
  uint32_t pair_at;                         // where the first pair of the first one goes: bytes of a stage
  bool copies;                              // whether it copies any
  uint32_t code_at;                         // 16 bytes of codes of the first row that this lane copies, of the stack
  int exponent_shift;

  __device__ __forceinline__ Mxfp4Wgmma(const ExpertProducts& call, const uint32_t& code_pieces, const ExpertTile& tile,
                                        int first_output, Piece* memory)
      : call(call),
        code_pieces(code_pieces),
        stages(reinterpret_cast<unsigned char*>(memory)),
        ring(reinterpret_cast<StagedMxfp4*>(memory + kInputStages * kStagePieces) + warp_index() * kCodeStages),
        num_steps(call.num_inputs / kTileDepth) {
    const int warp = warp_index(), lane = lane_index();
    // Lane 4r + t of warp w copies piece t of chunk w % 2 of row 8 (w / 2) + r, and of rows 32 further.
    const int row = warp / 2 * 8 + lane / 4, chunk = warp % 2, t = lane % 4;
    const PairRows pair_rows = rows_of(call, tile);
    copies = kPairs >= 32 || row < kPairs;
#pragma unroll
    for (int i = 0; i < kHalves * kHalfItems; ++i) {
      const auto pieces = static_cast<uint32_t>(call.num_inputs / Piece::size);
      input_at[i] = static_cast<uint32_t>(pair_rows.row_of(row + 32 * i)) * pieces + chunk * 4 + t;
    }
    pair_at = static_cast<uint32_t>(swizzled_piece(row, chunk * 4) * kVectorBytes + t * 4);
    const uint32_t num_groups = (call.num_inputs + kGroupOfCodes - 1) / kGroupOfCodes;
    const uint32_t tiles_of_expert = call.num_outputs / kTileOutputs;
    const uint32_t own = first_output / kTileOutputs + (kGated ? warp / 2 : warp);
    const uint32_t group = (tile.expert * tiles_of_expert + min(own, tiles_of_expert - 1)) * num_groups;
    const int half = kGated ? warp % 2 : 0;
    code_at = group * kTilePieces + half * (kTilePieces / 2) + lane;
    exponent_shift = 8 * half;
  }

  // Loads this thread's pieces of a step of 64 inputs, or of a half of its rows; beyond the last step, those of the
  // last.
  __device__ __forceinline__ void load_inputs(Piece (&to)[kHalfItems], unsigned step, int half) const {
    if (half >= kHalves || !copies) {
      return;
    }
    const uint32_t first = min(step, static_cast<unsigned>(num_steps) - 1) * kPiecesOfRow;
#pragma unroll
    for (int i = 0; i < kHalfItems; ++i) {
      to[i] = static_cast<const Piece*>(call.x)[first + input_at[half * kHalfItems + i]];
    }
  }

  // The last one of a step is followed by a barrier before its products.
  __device__ __forceinline__ void store_inputs(const Piece (&from)[kHalfItems], unsigned step, int half) const {
    if (half >= kHalves) {
      return;
    }
    if (copies) {
      const uint32_t stage = step % kInputStages * (kStagePieces * kVectorBytes) + pair_at;
#pragma unroll
      for (int i = 0; i < kHalfItems; ++i) {
        const auto& words = reinterpret_cast<const uint32_t (&)[4]>(from[i]);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          constexpr int kItemBytes = 32 * kPiecesOfRow * kVectorBytes;
          *reinterpret_cast<uint32_t*>(stages + (stage ^ q * kVectorBytes) + (half * kHalfItems + i) * kItemBytes) =
              words[q];
        }
      }
    }
    if (half == kHalves - 1) {
      publish_operands();
    }
  }

  // Issues one commit group of copies, empty beyond the last group.
  __device__ __forceinline__ void copy_codes(int group, int stage) const {
    if (group * 2 < num_steps) {
      const int lane = lane_index();
      const auto* const first = static_cast<const uint4*>(call.weights[0]);
      const auto* const second = static_cast<const uint4*>(kGated ? call.weights[1] : call.weights[0]);
      const uint32_t at = code_at + group * kTilePieces;
      const SharedAddress to = shared_address(ring + stage) + lane * kVectorBytes;
      constexpr int kCodeBytes = static_cast<int>(sizeof(StagedMxfp4::codes));
      copy_async_16(to, first + at, true);
      copy_async_16(to + kCodeBytes / 2, second + (at + (kGated ? 0 : kTilePieces / 2)), true);
      // Lanes 0 … 3 copy the exponents of the first weight, lanes 4 … 7 those of the second one.
      if (lane < (kGated ? 2 : 1) * kExponentPieces) {
        const uint32_t place = code_pieces + at / kTilePieces * kExponentPieces + lane % kExponentPieces;
        copy_async_16(to + kCodeBytes, (lane < kExponentPieces ? first : second) + place, true);
      }
    }
    commit_copies();
  }

  // The codes of a thread's two rows of a group, and the scales of their chunks.
  struct Rows {
    uint32_t words[2][4];
    uint32_t exponents[2][2];  // of two chunks, in halves

    // Returns a word whose bits 7 and 23 tell whether an exponent is 128 or more.
    __device__ __forceinline__ uint32_t load(const StagedMxfp4& staged, int shift) {
      uint32_t any = 0;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        reinterpret_cast<uint4&>(words[row]) = *reinterpret_cast<const uint4*>(&staged.codes[row][lane_index() * 4]);
        const uint2 both = *reinterpret_cast<const uint2*>(&staged.exponents[kGated ? row : 0][lane_index() / 4 * 2]);
        exponents[row][0] = both.x >> (kGated ? shift : 8 * row) & 0x00ff00ffu;
        exponents[row][1] = both.y >> (kGated ? shift : 8 * row) & 0x00ff00ffu;
        any |= exponents[row][0] | exponents[row][1];
      }
      return any;
    }
  };

  // A fragments of both steps of a chunk. A scale times 2^126 may be more than bfloat16 holds: kLarge multiplies twice.
  template <bool kLarge>
  __device__ __forceinline__ static void decode(uint32_t (&a)[2][4], const Rows& rows, int chunk) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t word = rows.words[row][chunk];
      // In both halves.
      const uint32_t exponent = __byte_perm(rows.exponents[row][chunk / 2], 0, chunk % 2 == 0 ? 0x1010 : 0x3232);
      const uint32_t factor = (kLarge ? min(exponent, 0x00800080u) : exponent) * 128 + 0x3f003f00u;
      a[0][row] = scaled_e2m1_pair<T, 0>(word, factor);
      a[0][2 + row] = scaled_e2m1_pair<T, 4>(word, factor);
      a[1][row] = scaled_e2m1_pair<T, 8>(word, factor);
      a[1][2 + row] = scaled_e2m1_pair<T, 12>(word, factor);
      if constexpr (kLarge) {
        const uint32_t rest = (max(exponent, 0x00800080u) - 0x00800080u) * 128 + 0x3f803f80u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t& pair = a[i / 2][i % 2 * 2 + row];
          pair = pair_product<T>(pair, rest);
        }
      }
    }
  }

  // Sets the sums. Returns whether they are wrong, since a scale is large, to every thread of the block.
  template <bool kLarge>
  __device__ __forceinline__ bool run(float (&sums)[kRegisters], const Piece* memory) {
#pragma unroll
    for (int stage = 0; stage < kCodeStages; ++stage) {
      copy_codes(stage, stage);
    }
    Piece pieces[kHalfItems];
    {
      Piece first[3][kHalfItems];
      load_inputs(first[0], 0, 0);
      load_inputs(first[1], 0, 1);
      load_inputs(first[2], 1, 0);
      load_inputs(pieces, 1, 1);
      store_inputs(first[0], 0, 0);
      store_inputs(first[1], 0, 1);
      store_inputs(first[2], 1, 0);
    }
    Rows rows;
    int code_stage = 0;
    uint32_t any = 0;
    const auto next_codes = [&](int group) {
      wait_for_copies<kCodeStages - 1>();
      __syncwarp();  // the copies of other lanes have arrived, too
      any |= rows.load(ring[code_stage], exponent_shift);
      __syncwarp();  // all lanes have read this stage
      copy_codes(group + kCodeStages, code_stage);
      code_stage = code_stage + 1 == kCodeStages ? 0 : code_stage + 1;
    };
    next_codes(0);
    uint32_t a[2][2][4];
    decode<kLarge>(a[0], rows, 0);
    for (int step = 0; step < num_steps; step += 2) {
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        const int own = step + chunk / 2;
        if (chunk == 2 && own >= num_steps) {
          break;
        }
        if (chunk % 2 == 0) {
          __syncthreads();  // the inputs of this step have arrived
        }
        begin_products();
        const Piece* const tile = memory + static_cast<unsigned>(own) % kInputStages * kStagePieces;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          multiply_fragment<T>(sums, a[chunk % 2][part], tile, chunk % 2 * 2 + part, step > 0 || chunk > 0 || part > 0);
        }
        commit_products();
        // What was loaded in the chunk before: half 1 of one step further, or half 0 of two steps further.
        store_inputs(pieces, chunk % 2 == 0 ? own + 1 : own + 2, chunk % 2 == 0 ? 1 : 0);
        load_inputs(pieces, own + 2, chunk % 2);
        if (chunk == 3) {
          next_codes(step / 2 + 1);
        }
        wait_for_products<1>();
        decode<kLarge>(a[(chunk + 1) % 2], rows, (chunk + 1) % 4);
      }
    }
    wait_for_products<0>();
    return !kLarge && __syncthreads_or((any & 0x00800080u) != 0) != 0;
  }
};

// The products of a tile of pairs, and their results.
template <class T, int kPairs, bool kGated, bool kLarge>
__device__ __forceinline__ bool multiply_tile_mxfp4(const ExpertProducts& call, const GatedActivation& activation,
                                                    const uint32_t& code_pieces, const ExpertTile& tile,
                                                    Vector<T>* memory) {
  using Products = Mxfp4Wgmma<T, kPairs, kGated>;
  const int first_output = static_cast<int>(blockIdx.x) * Products::kTileOfBlock;
  float sums[Products::kRegisters];
  if (Products(call, code_pieces, tile, first_output, memory).template run<kLarge>(sums, memory)) {
    return false;
  }
  // Read again: registers are scarce.
  const ExpertTile same = kLarge ? tile : call.tile(static_cast<int>(blockIdx.y));
  store_expert_sums<T, kPairs, kGated>(call, activation, same, rows_of(call, same), first_output, sums);
  return true;
}

// Grid: tiles of outputs, tiles of up to kPairs pairs. K is a multiple of 64, N of 16, and rows are 16-byte aligned.
template <class T, int kPairs, bool kGated>
__device__ __forceinline__ void multiply_experts_mxfp4(const ExpertProducts& call, const GatedActivation& activation,
                                                       const uint32_t& code_pieces) {
  AETHER_OPERAND_MEMORY(T, memory);
  ExpertTile tile = call.tile(static_cast<int>(blockIdx.y));
  if (tile.count == 0) {
    return;
  }
  bool is_done;
  if (kPairs > kMinMxfp4Pairs && tile.count <= kPairs / 2) {
    is_done = multiply_tile_mxfp4<T, kPairs == kMinMxfp4Pairs ? kPairs : kPairs / 2, kGated, false>(
        call, activation, code_pieces, tile, memory);
  } else {
    is_done = multiply_tile_mxfp4<T, kPairs, kGated, false>(call, activation, code_pieces, tile, memory);
  }
  if (is_done) {
    return;
  }
  // Large scales are rare: one kernel for them, over parts of the tile.
  tile = call.tile(static_cast<int>(blockIdx.y));
  if constexpr (kPairs == kMinMxfp4Pairs) {
    multiply_tile_mxfp4<T, kMinMxfp4Pairs, kGated, true>(call, activation, code_pieces, tile, memory);
  } else {
#pragma unroll 1
    for (int left = tile.count; left > 0; left -= kMinMxfp4Pairs, tile.begin += kMinMxfp4Pairs) {
      tile.count = min(left, kMinMxfp4Pairs);
      multiply_tile_mxfp4<T, kMinMxfp4Pairs, kGated, true>(call, activation, code_pieces, tile, memory);
      __syncthreads();
    }
  }
}

}  // namespace aether
