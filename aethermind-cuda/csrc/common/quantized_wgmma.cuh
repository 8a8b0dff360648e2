// Products of quantised weights with 9 to 64 tokens (columns) by wgmma, with swapped roles: outputs are the rows of a
// product, and its operand A is a warp's codes, converted in registers to integers that T represents exactly. Scales
// multiply the float32 products of 32 inputs, so weights are not rounded.
//
// A block has up to five warpgroups of 64 rows, which share the inputs in shared memory, because inputs are read from
// L2 once for each block. Codes, scales and inputs come by cp.async, a group of 128 inputs at a time, through a ring.
// While one warpgroup multiplies, others convert codes or scale their products.
//
// A thread holds inputs 8t … 8t + 7 of a chunk of 32 (see quantized_weight.cuh), in four pairs. Pairs 2s and 2s + 1 are
// its elements of step s of 16 inputs. So a chunk of a row of inputs, four pieces of four words, is transposed as it is
// copied: piece q has the pairs q of four threads.
#pragma once

#include "common/activations.cuh"
#include "common/async_copy.cuh"
#include "common/biased_codes.cuh"
#include "common/dependent_launch.cuh"
#include "common/projection.cuh"
#include "common/quantized_gemv.cuh"
#include "common/wgmma.cuh"

namespace aether {

// The index of this thread in its block, read where it is needed: nothing that is computed from it is kept in a
// register until then.
__device__ __forceinline__ int thread_reread() {
#ifdef AETHER_EMULATED
  return static_cast<int>(threadIdx.x);
#else
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
#endif
}

// The staged tiles of 16 outputs of a warp's 16 rows: rows 0 … 7 are a half of one tile, rows 8 … 15 of another or the
// same.
struct StagedRows {
  int tiles[2];
  int halves[2];

  __device__ __forceinline__ static StagedRows of_tile(int tile) { return {{tile, tile}, {0, 1}}; }
  // The same eight outputs of two tiles that follow each other, such as gate and up.
  __device__ __forceinline__ static StagedRows of_pair(int warp) {
    return {{warp & ~1, warp | 1}, {warp & 1, warp & 1}};
  }
};

// `Source` copies the codes and scales of a tile of 16 outputs as QuantizedSource does. `kThreads` are those of the
// largest block: five warpgroups have 96 registers for a thread, four have 128.
template <class T, int kBits, AffineTerm kTerm, int kColumns, int kThreads>
struct QuantizedWgmma {
  using Source = QuantizedSource<T, kBits, kTerm>;
  using Staged = typename Source::Staged;
  using WeightTile = typename Source::WeightTile;
  using Codes = BiasedCodes<T, kBits>;
  using Piece = Vector<T>;
  static constexpr int kStages = kBits == 8 ? 3 : 4;
  static constexpr int kTilePieces = kColumns * kPiecesOfRow;  // of 64 inputs
  static constexpr int kInputPieces = 2 * kTilePieces;         // of a group
  // Columns of a product, which are half of 64 where registers are few.
  static constexpr bool kIsHalved = kThreads > 512 || kTerm == AffineTerm::kOffsets;
  static constexpr int kPart = kColumns == 64 && kIsHalved ? 32 : kColumns;
  static constexpr int kCopyThreads = 256;  // of inputs
  static constexpr int kWordsOfGroup = kGroupInputs / 2;
  static constexpr int kTokensPerPass = kCopyThreads / kWordsOfGroup;
  static constexpr int kPasses = kColumns / kTokensPerPass;
  static constexpr int kRegisters = kColumns / 2;
  static_assert(kTokensPerPass == 4, "the swizzle of every other pass is the same");

  Piece* inputs;        // [stages][2 tiles of 64 inputs][columns][8 pieces]
  Staged* tiles;        // [stages][warps]
  uint32_t* row_bytes;  // of the first input: [4][passes], by column 4 pass + i
  const unsigned char* x;
  int num_words;  // of a row
  int num_warps;
  bool is_chunk_block;

  __device__ __forceinline__ QuantizedWgmma(Piece* memory, const T* x, int num_inputs, bool is_chunk_block)
      : inputs(memory),
        tiles(reinterpret_cast<Staged*>(memory + kStages * kInputPieces)),
        x(reinterpret_cast<const unsigned char*>(x)),
        num_words(num_inputs / 2),
        num_warps(static_cast<int>(blockDim.x) / kWarpSize),
        is_chunk_block(is_chunk_block) {
    row_bytes = reinterpret_cast<uint32_t*>(tiles + kStages * num_warps);
  }

  // Sets the rows of inputs: `row_of(column)`. A barrier precedes the first copy.
  template <class RowOf>
  __device__ __forceinline__ void set_rows(const RowOf& row_of) const {
    for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += static_cast<int>(blockDim.x)) {
      row_bytes[i % kTokensPerPass * kPasses + i / kTokensPerPass] = row_of(i) * static_cast<uint32_t>(num_words) * 4;
    }
  }

  // Issues the copies of a group of inputs; those beyond the last input are zeros.
  __device__ __forceinline__ void copy_inputs(int group, int stage) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kCopyThreads) {
      return;
    }
    const int word = thread % kWordsOfGroup, token = thread / kWordsOfGroup;
    const int piece = word % 32 / 16 * 4 + word % 4, position = word % 16 / 4;
    const int offset =
        word / 32 * kTilePieces * kVectorBytes + swizzled_piece(token, piece) * kVectorBytes + position * 4;
    const SharedAddress to = shared_address(inputs + stage * kInputPieces);
    const int k = group * kWordsOfGroup + word;
    const bool is_present = k < num_words;
    const unsigned char* const from = x + (is_present ? k : 0) * 4;
    const SharedAddress targets[2] = {to + offset, to + (offset ^ 4 * kVectorBytes)};
#pragma unroll
    for (int pass = 0; pass < kPasses; pass += 4) {
      // Read together: after a load from shared memory a copy has to wait.
      const uint4 bytes = *reinterpret_cast<const uint4*>(row_bytes + token * kPasses + pass);
      const uint32_t rows[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Four tokens further, bit 2 of the swizzle is another.
        copy_async<4>(targets[i % 2] + (pass + i) * kTokensPerPass * kPiecesOfRow * kVectorBytes, from + rows[i],
                      is_present);
      }
    }
  }

  // sums = the products of groups first … end - 1. `source` copies the tile of this warp, from the first group on.
  __device__ __forceinline__ void multiply(float (&sums)[kRegisters], Source& source, const StagedRows& rows, int first,
                                           int end) const {
    const SharedAddress target = shared_address(tiles + warp_index());
    const int stage_bytes = num_warps * static_cast<int>(sizeof(Staged));
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (first + stage < end) {
        source.copy(target + stage * stage_bytes, first + stage, 1);
      }
    }
    wait_for_predecessor();
    __syncthreads();  // rows are set
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (first + stage < end) {
        copy_inputs(first + stage, stage);
      }
      commit_copies();
    }
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) {
      sums[r] = 0.0f;
    }
    int stage = 0, next_stage = kStages - 1;
    for (int group = first; group < end; ++group) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // this group has arrived, and the previous one is no longer read
      publish_operands();
      if (group + kStages - 1 < end) {
        source.copy(target + next_stage * stage_bytes, group + kStages - 1, 1);
        copy_inputs(group + kStages - 1, next_stage);
      }
      commit_copies();
      add_group(sums, tiles + stage * num_warps, rows, inputs + stage * kInputPieces);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
    }
  }

 private:
  // Loads four words of codes for each of this thread's two rows.
  __device__ __forceinline__ static void load_codes(uint32_t (&codes)[2][4], const Staged* staged,
                                                    const StagedRows& rows, int word) {
    using Words = Vector<uint32_t, 4>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* const words = staged[rows.tiles[half]].codes + rows.halves[half] * (WeightTile::kTileWords / 2) +
                                    thread_reread() % kWarpSize * WeightTile::kLaneWords + word;
      const Words loaded = Words::load(words);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[half][i] = loaded.values[i];
      }
    }
  }

  // Loads the scales of a group for this thread's two rows, and their offsets.
  __device__ __forceinline__ void load_scales(uint32_t (&scales)[kGroupChunks], uint32_t (&terms)[kGroupChunks],
                                              const Staged* staged, const StagedRows& rows) const {
    const int row = lane_index() / 4;
    // Bytes of a half of the first tile's pairs, then of the second one's.
    const uint32_t selector = (rows.halves[0] != 0 ? 0x32u : 0x10u) | (rows.halves[1] != 0 ? 0x7600u : 0x5400u);
    const uint32_t* const first = staged[rows.tiles[0]].pairs;
    const uint32_t* const second = staged[rows.tiles[1]].pairs;
    load_pairs(scales, first + row * 4, second + row * 4, selector);
    if constexpr (kTerm == AffineTerm::kOffsets) {
      load_pairs(terms, first + kWarpSize + row * 4, second + kWarpSize + row * 4, selector);
    }
  }

  // Loads the zero points of a chunk and the next one, of outputs g and g + 8 of a tile.
  __device__ __forceinline__ uint32_t load_zeros(const Staged& tile, int chunk) const {
    const auto* const zeros = reinterpret_cast<const uint16_t*>(tile.pairs + kWarpSize);
    const int row = lane_index() / 4;
    if (is_chunk_block) {
      return *reinterpret_cast<const uint32_t*>(zeros + row * kGroupChunks + chunk);
    }
    return __byte_perm(zeros[chunk * 8 + row], zeros[chunk * 8 + 8 + row], 0x5410);
  }

  __device__ __forceinline__ static void load_pairs(uint32_t (&pairs)[kGroupChunks], const uint32_t* first,
                                                    const uint32_t* second, uint32_t selector) {
    const uint4 low = *reinterpret_cast<const uint4*>(first), high = *reinterpret_cast<const uint4*>(second);
    pairs[0] = __byte_perm(low.x, high.x, selector);
    pairs[1] = __byte_perm(low.y, high.y, selector);
    pairs[2] = __byte_perm(low.z, high.z, selector);
    pairs[3] = __byte_perm(low.w, high.w, selector);
  }

  // The zero point of a chunk in a half of a tile, converted as codes are.
  __device__ __forceinline__ static uint32_t zero_pair(uint32_t zeros, int chunk, int half) {
    // The byte is repeated in both halves.
    const uint32_t selector = 0x4040u + 0x0101u * static_cast<uint32_t>(half);
    return Codes::pair(__byte_perm(zeros, 0, selector + chunk % 2 * 0x0202u), 0);
  }

  // The codes of a chunk minus `zeros`, as A fragments of two steps. `word` is that of its first pair.
  __device__ __forceinline__ static void convert(uint32_t (&a)[2][4], const uint32_t (&codes)[2][4], int word,
                                                 const uint32_t (&zeros)[2]) {
    constexpr bool kIsCentered =
        kTerm == AffineTerm::kNone && Codes::kBias + static_cast<int>(WeightTile::kSymmetricZero) == 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int bit = kBits * (i / 2);
      const uint32_t pair = Codes::pair(codes[i % 2][word + bit / 16], bit % 16);
      a[i / 4][i % 4] = kIsCentered ? pair : pair_difference<T>(pair, zeros[i % 2]);
    }
  }

  // sums += factors (of the rows of a thread) · (A · inputs of one chunk).
  __device__ __forceinline__ static void add_chunk(float (&sums)[kRegisters], const uint32_t (&a)[2][4],
                                                   const Piece* inputs, int chunk, const float (&factors)[2]) {
#pragma unroll
    for (int part = 0; part < kColumns / kPart; ++part) {
      const Piece* const tile = inputs + (chunk / 2 * kColumns + part * kPart) * kPiecesOfRow;
      float products[kPart / 2];
      begin_products();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        multiply_fragment<T>(products, a[step], tile, chunk % 2 * 2 + step, step > 0);
      }
      commit_products();
      wait_for_products<0>();
#pragma unroll
      for (int r = 0; r < kPart / 2; ++r) {
        sums[part * (kPart / 2) + r] += factors[r / 2 % 2] * products[r];
      }
    }
  }

  __device__ __forceinline__ void add_group(float (&sums)[kRegisters], const Staged* staged, const StagedRows& rows,
                                            const Piece* inputs) const {
    constexpr int kChunksOfLoad = 16 / kBits;  // four words of codes
    uint32_t codes[2][4], scales[kGroupChunks], terms[kGroupChunks] = {};
    load_scales(scales, terms, staged, rows);
#pragma unroll
    for (int chunk = 0; chunk < kGroupChunks; ++chunk) {
      if (chunk % kChunksOfLoad == 0) {
        load_codes(codes, staged, rows, chunk * kBits / 4);
      }
      constexpr uint32_t kZero = kTerm == AffineTerm::kNone ? WeightTile::kSymmetricZero : 0;
      uint32_t zeros[2] = {Codes::pair(kZero * 0x10001u, 0), Codes::pair(kZero * 0x10001u, 0)};
      if constexpr (kTerm == AffineTerm::kZeroPoints) {
        if (chunk % 2 == 0) {
          terms[0] = load_zeros(staged[rows.tiles[0]], chunk);
          terms[1] = load_zeros(staged[rows.tiles[1]], chunk);
        }
        zeros[0] = zero_pair(terms[0], chunk, rows.halves[0]);
        zeros[1] = zero_pair(terms[1], chunk, rows.halves[1]);
      }
      uint32_t a[2][4];
      convert(a, codes, chunk % kChunksOfLoad * kBits / 4, zeros);
      add_chunk(sums, a, inputs, chunk, {half_of(scales[chunk], 0), half_of(scales[chunk], 1)});
      if constexpr (kTerm == AffineTerm::kOffsets) {
        const uint32_t ones[2][4] = {{kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>},
                                     {kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>}};
        add_chunk(sums, ones, inputs, chunk, {half_of(terms[chunk], 0), half_of(terms[chunk], 1)});
      }
    }
  }
};

// A block computes the products of kColumns tokens with 16 outputs for each warp, or 16 of both weights of a SwiGLU for
// every two warps: `up` is not null. Blocks along z split K and write their sums to `partials` for `split_k_reduce`.
// `block` is that of outputs.
template <class T, int kBits, AffineTerm kTerm, int kColumns, int kThreads>
__device__ __forceinline__ void quantized_wgmma(const Results<T>& results, const T* x, const uint8_t* weight,
                                                const uint8_t* up, int num_inputs, int num_blocks, int log2_chunks,
                                                float* partials, int block = static_cast<int>(blockIdx.y)) {
  using Products = QuantizedWgmma<T, kBits, kTerm, kColumns, kThreads>;
  AETHER_OPERAND_MEMORY(T, memory);
  launch_dependents();
  const bool is_gated = up != nullptr;
  const int first_tile = block * static_cast<int>(blockDim.x / kWarpSize), warp = warp_index(),
            tile = first_tile + warp;
  const int first_token = static_cast<int>(blockIdx.x) * kColumns;
  const int all_groups = (num_inputs + kGroupInputs - 1) / kGroupInputs;
  const int groups_per_split = (all_groups + static_cast<int>(gridDim.z) - 1) / static_cast<int>(gridDim.z);
  const int first = static_cast<int>(blockIdx.z) * groups_per_split;
  const int end = min(first + groups_per_split, all_groups);
  const Products products(memory, x, num_inputs, log2_chunks == 0);
  products.set_rows(
      [&](int column) { return static_cast<uint32_t>(min(first_token + column, results.num_tokens - 1)); });
  typename Products::Source source(
      {is_gated && warp % 2 != 0 ? up : weight, results.num_outputs, num_inputs, num_blocks, log2_chunks, kTerm},
      is_gated ? tile / 2 : tile, first);
  float sums[Products::kRegisters];
  products.multiply(sums, source, is_gated ? StagedRows::of_pair(warp) : StagedRows::of_tile(warp), first, end);

  const int thread = thread_reread(), lane = thread % kWarpSize;
  const int warp_tile = first_tile + thread / kWarpSize, row = lane / 4;
  const int token = static_cast<int>(blockIdx.x) * kColumns + lane % 4 * 2;
  const int output = is_gated ? warp_tile / 2 * kTileOutputs + warp_tile % 2 * 8 + row : warp_tile * kTileOutputs + row;
  const bool is_split = gridDim.z > 1;
#pragma unroll
  for (int r = 0; r < Products::kRegisters; r += 4) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = token + r / 4 * kTileTokens + e;
      if (is_gated && !is_split) {
        results.store(column, output, epilogue<2>({sums[r + e], sums[r + 2 + e]}));
        continue;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = sums[r + 2 * h + e];
        const int row_output = is_gated ? output : output + 8 * h;
        if (!is_split) {
          results.store(column, row_output, sum);
        } else if (column < results.num_tokens && row_output < results.num_outputs) {
          const int split = static_cast<int>(blockIdx.z), matrix = is_gated ? 2 * split + h : split;
          partials[partial_index(results, matrix, column, row_output)] = sum;
        }
      }
    }
  }
}

}  // namespace aether

// entry(columns, format, bits, term, dtype, threads) for every kernel of a source. Blocks of more than 512 threads that
// have 64 tokens multiply them in halves, which take fewer registers: `wide` ones, where smaller blocks are faster.
#define AETHER_QUANTIZED_WGMMA_COLUMNS(entry, format, bits, term, dtype, threads, threads64)  \
  entry(16, format, bits, term, dtype, threads) entry(32, format, bits, term, dtype, threads) \
      entry(64, format, bits, term, dtype, threads64)
#define AETHER_QUANTIZED_WGMMA_HALVES(entry, format, bits, term, threads, threads64)     \
  AETHER_QUANTIZED_WGMMA_COLUMNS(entry, format, bits, term, float16, threads, threads64) \
  AETHER_QUANTIZED_WGMMA_COLUMNS(entry, format, bits, term, bfloat16, threads, threads64)
#define AETHER_EACH_QUANTIZED_WGMMA(entry)                                                   \
  AETHER_QUANTIZED_WGMMA_HALVES(entry, int4, 4, kNone, 640, 512)                             \
  entry(64, int4_wide, 4, kNone, float16, 640) entry(64, int4_wide, 4, kNone, bfloat16, 640) \
      AETHER_QUANTIZED_WGMMA_HALVES(entry, int4_zp, 4, kZeroPoints, 640, 512)                \
          AETHER_QUANTIZED_WGMMA_HALVES(entry, int4_offset, 4, kOffsets, 640, 512)           \
              AETHER_QUANTIZED_WGMMA_HALVES(entry, int8, 8, kNone, 512, 512)                 \
                  AETHER_QUANTIZED_WGMMA_HALVES(entry, int8_zp, 8, kZeroPoints, 512, 512)    \
                      AETHER_QUANTIZED_WGMMA_HALVES(entry, int8_offset, 8, kOffsets, 512, 512)
