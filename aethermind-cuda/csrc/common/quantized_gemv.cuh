// GEMV of up to eight tokens (decode) with quantised weights, for input rows that are multiples of 16 bytes.
//
// Throughput depends on the bytes in flight and on the instructions per group of 128 inputs. A warp copies groups to
// its ring in shared memory (cp.async) several groups ahead, codes with their scales: that takes no registers, and
// nothing waits for a load that was issued late. The first copies are issued before the kernel waits for its
// predecessor, since weights do not depend on it.
//
// Tensor cores multiply codes with a bias (see biased_codes.cuh) and start from minus the bias times the sum of the
// inputs: all are integers that T represents exactly, and a subtraction per pair of weights is saved.
#pragma once

#include "common/async_copy.cuh"
#include "common/biased_codes.cuh"
#include "common/dependent_launch.cuh"
#include "common/projection.cuh"

namespace aether {

// Blocks per multiprocessor that registers are allocated for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kQuantizedBlocks = 1;
#else
constexpr int kQuantizedBlocks = 2;
#endif
// Groups in a warp's ring. Longer rings take the L1 cache from the inputs.
template <int kBits, int kWeights>
constexpr int kQuantizedStages = kBits * kWeights > 8 ? 2 : 3;
constexpr int kGroupChunks = 4, kGroupInputs = kGroupChunks * kChunk;

// A group of 16 outputs in shared memory.
template <int kBits, AffineTerm kTerm>
struct alignas(kVectorBytes) StagedGroup {
  // Words of zero points or offsets, each copied by a lane.
  static constexpr int kTermWords = kTerm == AffineTerm::kZeroPoints ? 16 : kTerm == AffineTerm::kOffsets ? 32 : 0;

  uint32_t codes[kTileOutputs * 4 * kBits];
  uint32_t pairs[kWarpSize + kTermWords];  // scales [8 outputs][4 chunks], then zero points or offsets

  // Loads this thread's codes, scales, and zero points or offsets.
  template <class WeightTile>
  __device__ __forceinline__ void load(typename WeightTile::Group& group, bool is_chunk_block) const {
    WeightTile::load_codes(group, codes + lane_index() * WeightTile::kLaneWords);
    const int row = lane_index() / 4;
    load_vector(group.scales, pairs + row * 4);
    const uint32_t* terms = pairs + kWarpSize;
    if constexpr (kTerm == AffineTerm::kOffsets) {
      load_vector(group.terms, terms + row * 4);
    } else if constexpr (kTerm == AffineTerm::kZeroPoints) {
      const auto* zeros = reinterpret_cast<const uint16_t*>(terms);  // in the order of the packed weight
#pragma unroll
      for (int chunk = 0; chunk < kGroupChunks; ++chunk) {
        group.terms[chunk] = zeros[is_chunk_block ? row * kGroupChunks + chunk : chunk * 8 + row];
      }
    }
  }

 private:
  __device__ __forceinline__ static void load_vector(uint32_t (&to)[4], const uint32_t* from) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(from);
    to[0] = loaded.x;
    to[1] = loaded.y;
    to[2] = loaded.z;
    to[3] = loaded.w;
  }
};

// The address of a lane's scale pair of a group, or of its zero points: `min(chunk >> shift, last) * stride` bytes
// after `first`.
struct BlockSource {
  const unsigned char* first;
  int chunk;  // in the group
  int shift;
  int last;
  int stride;

  __device__ __forceinline__ const unsigned char* at(int group) const {
    return first + min((group * kGroupChunks + chunk) >> shift, last) * stride;
  }
};

// The source of a lane's word of a group. `words` are those of the tile: [scale vectors][words], where a scale vector
// covers a group if blocks are chunks, and otherwise a block, whose words lanes `chunk` + kChunkStride · i hold.
__device__ __forceinline__ BlockSource block_source(const uint32_t* words, int words_per_chunk, int chunk, int word,
                                                    int log2_chunks, int last_block) {
  const auto bytes = [](const uint32_t* first) { return reinterpret_cast<const unsigned char*>(first); };
  return log2_chunks == 0 ? BlockSource{bytes(words + lane_index()), 0, 2, 1 << 30, words_per_chunk * 16}
                          : BlockSource{bytes(words + word), chunk, log2_chunks, last_block, words_per_chunk * 4};
}

// The source of a lane's copies of one weight.
template <class T, int kBits, AffineTerm kTerm>
struct QuantizedSource {
  using WeightTile = QuantizedWeight<T, kBits, kTerm>;
  using Staged = StagedGroup<kBits, kTerm>;

  const uint32_t* codes;  // of the next group
  BlockSource scales;
  BlockSource terms;

  __device__ __forceinline__ QuantizedSource(const typename WeightTile::Params& params, int tile, int group) {
    const WeightTile weight(params, tile);
    const int lane = lane_index();
    codes = weight.tile_codes() + static_cast<int64_t>(group) * WeightTile::kTileWords + lane * 4;
    const auto source = [&](const uint32_t* words, int words_per_chunk, int chunk, int word) {
      return block_source(words, words_per_chunk, chunk, word, weight.log2_chunks, weight.last_block);
    };
    scales = source(weight.scales, 8, lane % 4, lane / 4);
    if constexpr (kTerm == AffineTerm::kOffsets) {
      terms = source(weight.offsets, 8, lane % 4, lane / 4);
    } else if constexpr (kTerm == AffineTerm::kZeroPoints) {
      terms = source(reinterpret_cast<const uint32_t*>(weight.zeros), 4, lane / 4, lane % 4);
    }
  }

  // Issues the copies of a group, and moves to the group `step` groups on.
  __device__ __forceinline__ void copy(SharedAddress to, int group, int step) {
    constexpr int kPieces = WeightTile::kTileWords / 4;  // of 16 bytes
    const int lane = lane_index();
#pragma unroll
    for (int first = 0; first < kPieces; first += kWarpSize) {
      if (first + kWarpSize <= kPieces || lane < kPieces - first) {
        copy_async_16(to + (first + lane) * 16, codes + first * 4, true);
      }
    }
    codes += step * WeightTile::kTileWords;
    to += static_cast<int>(sizeof(Staged::codes)) + lane * 4;
    copy_async_4(to, scales.at(group));
    if constexpr (kTerm != AffineTerm::kNone) {
      if (lane < Staged::kTermWords) {
        copy_async_4(to + kWarpSize * 4, terms.at(group));
      }
    }
  }
};

// The inputs of eight tokens, chunk by chunk; `x` is aligned. Tokens beyond the last are the last one: results of
// theirs are not stored.
template <class T>
struct AlignedInputs {
  const T* row;
  int size;

  __device__ __forceinline__ AlignedInputs(const Inputs<T>& x, int token)
      : row(x.x + static_cast<int64_t>(min(token, x.num_tokens - 1)) * x.size + lane_index() % 4 * kFrag8Values),
        size(x.size) {}

  __device__ __forceinline__ bool has_group(int k) const { return k + kGroupInputs <= size; }

  // Loads a chunk of the group at k, which has all of its inputs.
  __device__ __forceinline__ void load(Frag8<T>& inputs, int k, int chunk) const {
    inputs = reinterpret_cast<const Frag8<T>*>(row + k)[chunk * (kChunk / kFrag8Values)];
  }

  // Loads the chunks of the last group where it is a part of one, at k; those beyond the last input are zeros.
  __device__ __forceinline__ void load_rest(Frag8<T> (&inputs)[kGroupChunks], int k) const {
    if (has_group(k) || k >= size) {
      return;
    }
#pragma unroll
    for (int chunk = 0; chunk < kGroupChunks; ++chunk) {
      inputs[chunk] = Frag8<T>{};
      if (k + chunk * kChunk + lane_index() % 4 * kFrag8Values < size) {
        load(inputs[chunk], k, chunk);
      }
    }
  }

  // Loads the chunks of the group at k, if there is one.
  __device__ __forceinline__ void load_group(Frag8<T> (&inputs)[kGroupChunks], int k) const {
    if (has_group(k)) {
#pragma unroll
      for (int chunk = 0; chunk < kGroupChunks; ++chunk) {
        load(inputs[chunk], k, chunk);
      }
    }
    load_rest(inputs, k);
  }
};

// The sums of a warp.
template <class T, int kBits, AffineTerm kTerm, int kWeights>
struct QuantizedProducts {
  using Codes = BiasedCodes<T, kBits>;
  using WeightTile = QuantizedWeight<T, kBits, kTerm>;
  using Group = typename WeightTile::Group;
  static constexpr bool kHasZeroPoints = kTerm == AffineTerm::kZeroPoints;
  // The constant that is subtracted from all biased codes, unless outputs have zero points.
  static constexpr int kConstant =
      Codes::kBias + (kTerm == AffineTerm::kNone ? static_cast<int>(WeightTile::kSymmetricZero) : 0);

  WarpAccumulator<T, 1> sums[kWeights];
  uint32_t constant[4];  // minus kConstant, in both halves

  // Adds 0 to each constant, as `sizes` are not negative. The compiler does not know that, so it keeps the constants in
  // four registers instead of filling registers before each mma.
  __device__ __forceinline__ explicit QuantizedProducts(const int (&sizes)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      constant[i] = packed<T>(-kConstant, -kConstant) + static_cast<uint32_t>(sizes[i] >> 31);
    }
  }

  using Bases = float[kGroupChunks][4];

  // Sets the initial values of the biased products of a group, unless outputs have zero points.
  __device__ __forceinline__ void begin(Bases& bases, const Frag8<T> (&inputs)[kGroupChunks]) const {
    if constexpr (!kHasZeroPoints && kConstant != 0) {
#pragma unroll
      for (int chunk = 0; chunk < kGroupChunks; ++chunk) {
        multiply_uniform(bases[chunk], inputs[chunk], constant);
      }
    }
  }

  // Adds the products of a group of one weight, and calls `do_next(chunk)` after those of a chunk.
  template <class DoNext>
  __device__ __forceinline__ void add(int weight, const Group& group, const Frag8<T> (&inputs)[kGroupChunks],
                                      const Bases& bases, const DoNext& do_next) {
    float (&totals)[4] = sums[weight].sums[0];
#pragma unroll
    for (int chunk = 0; chunk < kGroupChunks; ++chunk) {
      float part[4];
      if constexpr (kHasZeroPoints) {
        const uint32_t zeros = group.terms[chunk];
        const uint32_t low = Codes::negated_pair(zeros & 0xff), high = Codes::negated_pair(zeros >> 8);
        float base[4];
        multiply_uniform(base, inputs[chunk], {low, high, low, high});
        multiply_codes(part, group, chunk, inputs[chunk], base);
      } else {
        multiply_codes(part, group, chunk, inputs[chunk], bases[chunk]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        totals[i] += half_of(group.scales[chunk], i / 2) * part[i];
      }
      if constexpr (kTerm == AffineTerm::kOffsets) {
        // The sum of the inputs is the base / -kConstant.
        const float factors[2] = {half_of(group.terms[chunk], 0) * (-1.0f / kConstant),
                                  half_of(group.terms[chunk], 1) * (-1.0f / kConstant)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          totals[i] += factors[i / 2] * bases[chunk][i];
        }
      }
      do_next(chunk);
    }
  }

 private:
  // base = weights · inputs of one chunk, where all inputs of an output have the same weight.
  __device__ __forceinline__ static void multiply_uniform(float (&base)[4], const Frag8<T>& inputs,
                                                          const uint32_t (&a)[4]) {
    multiply<T>(base, a, inputs.pairs[0], inputs.pairs[1]);
    multiply_add<T>(base, a, inputs.pairs[2], inputs.pairs[3]);
  }

  // part = (codes + bias) · inputs of one chunk + base.
  __device__ __forceinline__ static void multiply_codes(float (&part)[4], const Group& group, int chunk,
                                                        const Frag8<T>& inputs, const float (&base)[4]) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int bit = kBits * (4 * chunk + i / 2);
      a[i / 4][i % 4] = Codes::pair(group.codes[i % 2].words[bit / 16], bit % 16);
    }
    multiply_add<T>(part, a[0], inputs.pairs[0], inputs.pairs[1], base);
    multiply_add<T>(part, a[1], inputs.pairs[2], inputs.pairs[3]);
  }
};

// A block computes 16 outputs of eight tokens, and its warps split K as in project_skinny, so that the summation order
// of a token does not depend on the batch. Dynamic shared memory: the rings of all warps, then
// float[warps][kWeights][8][17]. `tiles` are the tiles of 16 outputs of the first and the last weight;
// `store(accumulators, memory of the sums, first token)` adds what the warps have.
template <class T, int kBits, AffineTerm kTerm, int kWeights, class Store>
__device__ __forceinline__ void quantized_gemv_of_tiles(
    const Inputs<T>& x, const typename QuantizedWeight<T, kBits, kTerm>::Params (&params)[kWeights],
    const int (&tiles)[2], const Store& store) {
  using WeightTile = QuantizedWeight<T, kBits, kTerm>;
  using Staged = StagedGroup<kBits, kTerm>;
  using Products = QuantizedProducts<T, kBits, kTerm, kWeights>;
  constexpr int kStages = kQuantizedStages<kBits, kWeights>;
  constexpr int kStageBytes = kWeights * static_cast<int>(sizeof(Staged)), kRingBytes = kStages * kStageBytes;
  AETHER_DYNAMIC_SHARED(unsigned char, memory);

  launch_dependents();
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_groups = (x.size + kGroupInputs - 1) / kGroupInputs;
  unsigned char* const ring = memory + warp_index() * kRingBytes;
  const SharedAddress ring_address = shared_address(ring);
  int group = warp_index();
  QuantizedSource<T, kBits, kTerm> sources[2] = {{params[0], tiles[0], group}, {params[kWeights - 1], tiles[1], group}};
  // Issues one commit group of copies, empty beyond the last group.
  const auto begin_copy = [&](int offset, int group) {
    if (group < num_groups) {
#pragma unroll
      for (int weight = 0; weight < kWeights; ++weight) {
        sources[weight].copy(ring_address + offset + weight * static_cast<int>(sizeof(Staged)), group, num_warps);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    begin_copy(stage * kStageBytes, group + stage * num_warps);
  }
  wait_for_predecessor();

  const int token = static_cast<int>(blockIdx.x) * kTileTokens;
  const AlignedInputs<T> rows(x, token + lane_index() / 4);
  const bool is_chunk_block = params[0].log2_chunks == 0;
  Products products({x.size, x.num_tokens, params[0].num_outputs, params[0].num_blocks});
  // Inputs are loaded two groups ahead, too.
  Frag8<T> inputs[2][kGroupChunks];
  rows.load_group(inputs[0], group * kGroupInputs);
  rows.load_group(inputs[1], (group + num_warps) * kGroupInputs);
  int offset = 0;
  const auto add_group = [&](Frag8<T>(&inputs)[kGroupChunks]) {
    wait_for_copies<kStages - 1>();
    __syncwarp();  // the copies of other lanes have arrived, too
    const int next_k = (group + 2 * num_warps) * kGroupInputs;
    const bool has_next = rows.has_group(next_k);
    typename Products::Bases bases = {};
    products.begin(bases, inputs);
#pragma unroll
    for (int weight = 0; weight < kWeights; ++weight) {
      typename WeightTile::Group staged;
      reinterpret_cast<const Staged*>(ring + offset)[weight].template load<WeightTile>(staged, is_chunk_block);
      if (weight == kWeights - 1) {
        __syncwarp();  // all lanes have read this stage
        begin_copy(offset, group + kStages * num_warps);
      }
      products.add(weight, staged, inputs, bases, [&](int chunk) {
        if (weight == kWeights - 1 && has_next) {
          rows.load(inputs[chunk], next_k, chunk);
        }
      });
    }
    rows.load_rest(inputs, next_k);
    group += num_warps;
    offset = offset + kStageBytes < kRingBytes ? offset + kStageBytes : 0;
  };
  while (group < num_groups) {
    add_group(inputs[0]);
    if (group < num_groups) {
      add_group(inputs[1]);
    }
  }
  using Sums = float[kWeights][kTileTokens * kSumsStride];
  store(products.sums, reinterpret_cast<Sums*>(memory + num_warps * kRingBytes), token);
}

// The same tile of all weights, stored as `results`.
template <class T, int kBits, AffineTerm kTerm, int kWeights>
__device__ __forceinline__ void quantized_gemv(
    const Results<T>& results, const Inputs<T>& x,
    const typename QuantizedWeight<T, kBits, kTerm>::Params (&params)[kWeights],
    int tile = static_cast<int>(blockIdx.y)) {
  quantized_gemv_of_tiles<T, kBits, kTerm, kWeights>(
      x, params, {tile, tile},
      [&](const auto& accumulators, auto* sums, int token) { store_sums(results, accumulators, sums, token, tile); });
}

}  // namespace aether
