// Multi-head latent attention (MLA; DeepSeek-V2, arXiv:2405.04434) in its absorbed form, over a paged cache of latent
// vectors: all heads share keys of 576 elements, whose first 512 are the values.
//
// A key is read once for the kRows rows of a block. Its eight warps share a tile of 32 keys in shared memory: first
// they divide the scores by rows or keys and by halves of the dot products, then each row's softmax weights go to some
// lanes of one warp, then the warps divide the columns of the output, whose accumulators are in registers. Keys are
// copied by cp.async in a pipeline of `num_stages` tiles.
#pragma once

#include "common/async_copy.cuh"
#include "common/latent_rows.cuh"

namespace aether {

constexpr int kLatentKeys = 32;  // of a tile
constexpr int kLatentWarps = kLatentThreads / kWarpSize;

template <class T, int kRows>
struct LatentShared {
  static constexpr int kKeyStride = kRowStride<kLatentKeyDim>;
  static constexpr int kScoreStride = kLatentKeys + 8;
  static constexpr int kWeightStride = kRowStride<kLatentKeys>;
  static constexpr int kStageElements = kLatentKeys * kKeyStride;
  static constexpr bool kAreQueriesInRegisters = kRows == 16;
  static constexpr int kParts = kAreQueriesInRegisters ? 4 : 2;  // of dot products
  using Scores = float[kParts][kRows][kScoreStride];

  T queries[kRows][kKeyStride];
  unsigned char memory_of_scores[kAreQueriesInRegisters ? 16 : sizeof(Scores)];
  T weights[kRows][kWeightStride];
  float factors[kRows];  // of the accumulators of a row, before this tile's weights are added; finally, 1 / sum

  // The scores of a tile, as partial sums. If queries are in registers, scores reuse the queries' shared memory.
  __device__ __forceinline__ Scores& scores() {
    if constexpr (kAreQueriesInRegisters) {
      static_assert(sizeof(Scores) <= sizeof(queries));
      return reinterpret_cast<Scores&>(queries);
    } else {
      return reinterpret_cast<Scores&>(memory_of_scores);
    }
  }
};

// The online softmax of one row in kRowThreads adjacent lanes. A lane has the keys 2 i and 2 i + 1 of every
// 2 kRowThreads, where i is its index.
template <class T, int kRows>
struct LatentSoftmax {
  static constexpr int kRowThreads = kLatentThreads / kRows;
  static constexpr int kPairs = kLatentKeys / 2 / kRowThreads;
  using Shared = LatentShared<T, kRows>;

  int row, lane;
  LatentRow place;
  float base = kMinusInfinity;  // the score that weights are relative to, as in SoftmaxRows
  float sum = 0.0f;             // of this lane's keys only, until `finish`

  __device__ __forceinline__ LatentSoftmax(const AttentionCall& call, int first_row)
      : row(static_cast<int>(threadIdx.x) / kRowThreads),
        lane(static_cast<int>(threadIdx.x) % kRowThreads),
        place(call, first_row + row) {}

  // Reads the scores of a tile and writes their weights 2^(scale (score - base)), rounded to T.
  __device__ __forceinline__ void update(Shared& shared, const LatentKeyTiles<kLatentKeys>& tile, float scale,
                                         float sign) {
    constexpr float kRescaleThreshold = 8.0f;
    const int num_visible = tile.visible_to(place);
    float scores[kPairs][2], largest = base;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int key = 2 * (lane + i * kRowThreads);
      float2 score{0.0f, 0.0f};
#pragma unroll
      for (int part = 0; part < Shared::kParts; ++part) {
        const float2 addend = *reinterpret_cast<const float2*>(&shared.scores()[part][row][key]);
        score.x += addend.x;
        score.y += addend.y;
      }
      scores[i][0] = key < num_visible ? sign * score.x : kMinusInfinity;
      scores[i][1] = key + 1 < num_visible ? sign * score.y : kMinusInfinity;
      largest = fmaxf(largest, fmaxf(scores[i][0], scores[i][1]));
    }
#pragma unroll
    for (int distance = 1; distance < kRowThreads; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, distance));
    }
    float factor = 1.0f;
    if ((largest - base) * scale > kRescaleThreshold) {  // false before the first visible key
      factor = fast_exp2((base - largest) * scale);
      base = largest;
      sum *= factor;
    }
    if (lane == 0) shared.factors[row] = factor;
    const float power = base == kMinusInfinity ? 0.0f : base * scale;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float first = fast_exp2(fmaf(scores[i][0], scale, -power));
      const float second = fast_exp2(fmaf(scores[i][1], scale, -power));
      sum += first + second;
      *reinterpret_cast<uint32_t*>(&shared.weights[row][2 * (lane + i * kRowThreads)]) = packed<T>(first, second);
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int distance = 1; distance < kRowThreads; distance *= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, distance);
    }
  }
};

// Computes the scores of tiles. Where a block has 64 rows, warp w computes half w / 4 of the dot products of 16 rows
// with all keys. Where it has 16, it computes quarter w / 2 of those with 16 keys, and keeps its part of the queries.
template <class T, int kRows>
struct LatentScores {
  using Shared = LatentShared<T, kRows>;
  static constexpr int kPartDims = kLatentKeyDim / Shared::kParts;
  static constexpr int kSteps = kPartDims / 16;
  static constexpr int kWarpsOfPart = kLatentWarps / Shared::kParts;
  static constexpr int kKeyTiles = kRows == 64 ? kLatentKeys / 8 : kLatentKeys / 8 / kWarpsOfPart;

  uint32_t queries[Shared::kAreQueriesInRegisters ? kSteps : 1][1][4];
  int part = warp_index() / kWarpsOfPart;
  int first_row = kRows == 64 ? warp_index() % kWarpsOfPart * 16 : 0;
  int first_key = kRows == 64 ? 0 : warp_index() % kWarpsOfPart * kKeyTiles * 8;

  __device__ __forceinline__ void load(const Shared& shared, int step) {
    constexpr bool kIsKept = Shared::kAreQueriesInRegisters;
    load_queries<T, kLatentKeyDim>(queries[kIsKept ? step : 0][0], shared.queries[first_row],
                                   part * kPartDims + step * 16);
  }

  // Loads the queries that are kept in registers.
  __device__ __forceinline__ void load_all(const Shared& shared) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load(shared, step);
  }

  __device__ __forceinline__ void write(Shared& shared, const T* keys) {
    constexpr int kUnroll = Shared::kAreQueriesInRegisters ? kSteps : 3;
    float scores[1][kKeyTiles][4] = {};
#pragma unroll kUnroll
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (!Shared::kAreQueriesInRegisters) load(shared, step);
      add_scores<T, kLatentKeyDim>(scores, queries[Shared::kAreQueriesInRegisters ? step : 0],
                                   keys + first_key * Shared::kKeyStride, part * kPartDims + step * 16);
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const int key = first_key + 8 * n + lane_index() % 4 * 2;
      float* const to = &shared.scores()[part][first_row + lane_index() / 4][key];
      *reinterpret_cast<float2*>(to) = {scores[0][n][0], scores[0][n][1]};
      *reinterpret_cast<float2*>(to + 8 * Shared::kScoreStride) = {scores[0][n][2], scores[0][n][3]};
    }
  }
};

// The output's accumulators: a warp has 64 columns of 16 rows, or 128 columns of 32 of 64 rows.
template <class T, int kRows>
struct LatentOutput {
  static constexpr int kRowTiles = kRows == 64 ? 2 : 1;  // of 16 rows
  static constexpr int kColumnWarps = kLatentWarps / (kRows / 16 / kRowTiles);
  static constexpr int kColumns = kLatentRank / kColumnWarps;
  using Shared = LatentShared<T, kRows>;

  float sums[kRowTiles][kColumns / 8][4] = {};
  int first_row = warp_index() / kColumnWarps * kRowTiles * 16;
  int first_column = warp_index() % kColumnWarps * kColumns;

  // sums = factors · sums + weights · values.
  __device__ __forceinline__ void update(const Shared& shared, const T* values) {
    scale(shared, false);
    const int lane = lane_index();
    const T* const lane_source = values + lane % 16 * Shared::kKeyStride + first_column + lane / 16 * 8;
#pragma unroll
    for (int key = 0; key < kLatentKeys; key += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_queries<T, kLatentKeys>(a[m], shared.weights[first_row + 16 * m], key);
      }
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, lane_source + key * Shared::kKeyStride + n * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(sums[m][n], a[m], b[0], b[1]);
          multiply_add<T>(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Multiplies rows by their factors, which are rarely other than 1 unless `always`.
  __device__ __forceinline__ void scale(const Shared& shared, bool always) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const float* const factors = shared.factors + first_row + 16 * m + lane_index() / 4;
      const float of_rows[2] = {factors[0], factors[8]};
      if (!always && !__any_sync(kFullWarp, of_rows[0] != 1.0f || of_rows[1] != 1.0f)) continue;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] *= of_rows[i / 2];
      }
    }
  }

  // Calls store(row, column, pair of sums) for this thread's pairs.
  template <class Store>
  __device__ __forceinline__ void for_each_pair(const Store& store) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first_row + 16 * m + 8 * r + lane_index() / 4;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          const float2 pair{sums[m][n][2 * r], sums[m][n][2 * r + 1]};
          store(row, first_column + 8 * n + lane_index() % 4 * 2, pair);
        }
      }
    }
  }
};

// Waits until the oldest of `num_stages` - 1 tiles in flight has arrived; 2 to 4 stages.
__device__ __forceinline__ void wait_for_stage(int num_stages) {
  if (num_stages == 2) {
    wait_for_copies<0>();
  } else if (num_stages == 3) {
    wait_for_copies<1>();
  } else {
    wait_for_copies<2>();
  }
}

// Attention of kRows rows, or of one split of their keys. Grid: tiles of rows, splits. Dynamic shared memory:
// LatentShared, then `num_stages` tiles of keys.
template <class T, int kRows>
__device__ __forceinline__ void attend_latent(const AttentionCall& call, int num_stages) {
  using Shared = LatentShared<T, kRows>;
  AETHER_DYNAMIC_SHARED(unsigned char, memory);
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  T* const stages = reinterpret_cast<T*>(memory + sizeof(Shared));
  // Later tokens of a prompt have more keys: their blocks begin first.
  const int tile_of_rows = static_cast<int>(gridDim.x - 1 - blockIdx.x), split = static_cast<int>(blockIdx.y);
  const int first_row = tile_of_rows * kRows, total_rows = call.num_tokens * call.num_heads;
  LatentKeyTiles<kLatentKeys> tile(call, first_row, kRows);
  const LatentSplits<kRows, kLatentKeys> splits(tile);
  if (split >= splits.count) return;
  const int num_tiles = splits.num_tiles(split);
  tile.seek(split * splits.length);

  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kPieces = kLatentKeyDim * static_cast<int>(sizeof(T)) / kVectorBytes;
  constexpr int kPieceElements = kVectorBytes / static_cast<int>(sizeof(T));
  for (int i = thread; i < kRows * kPieces; i += kLatentThreads) {
    const int row = i / kPieces, dim = i % kPieces * kPieceElements;
    const bool is_present = first_row + row < total_rows;
    const int64_t source = is_present ? static_cast<int64_t>(first_row + row) * kLatentKeyDim + dim : 0;
    copy_async_16(&shared.queries[row][dim], static_cast<const T*>(call.q) + source, is_present);
  }
  // Eight threads copy a key. Its cache row is looked up one tile ahead. Keys beyond the last one are zeros.
  constexpr int kKeyThreads = kLatentThreads / kLatentKeys;
  LatentKeyTiles<kLatentKeys> ahead = tile;
  int num_ahead = 0;
  const auto place_of_key = [&]() -> int64_t {
    const int key = ahead.first + thread / kKeyThreads;
    return num_ahead < num_tiles && key < ahead.end ? call.rows(ahead.sequence, 0)(key) : -1;
  };
  int64_t place = place_of_key();
  const auto fetch = [&](int stage) {
    if (num_ahead < num_tiles) {
      T* const to = stages + stage * Shared::kStageElements + thread / kKeyThreads * Shared::kKeyStride;
      const T* const from = static_cast<const T*>(call.k_cache) + (place < 0 ? 0 : place * kLatentKeyDim);
#pragma unroll
      for (int i = 0; i < kPieces / kKeyThreads; ++i) {
        const int dim = (thread % kKeyThreads + i * kKeyThreads) * kPieceElements;
        copy_async_16(to + dim, from + dim, place >= 0);
      }
      ++num_ahead;
      ahead.next();
      place = place_of_key();
    }
    commit_copies();
  };
  for (int stage = 0; stage < num_stages - 1; ++stage) fetch(stage);

  LatentSoftmax<T, kRows> softmax(call, first_row);
  LatentOutput<T, kRows> output;
  LatentScores<T, kRows> scores;
  if constexpr (Shared::kAreQueriesInRegisters) {
    wait_for_stage(num_stages);
    __syncthreads();
    scores.load_all(shared);
  }
  const float scale = positive_scale(call.scale), sign = call.scale < 0.0f ? -1.0f : 1.0f;
  for (int i = 0, stage = 0; i < num_tiles; ++i, tile.next()) {
    wait_for_stage(num_stages);
    __syncthreads();  // this tile has arrived, and the one before it is no longer read
    fetch(stage == 0 ? num_stages - 1 : stage - 1);
    const T* const keys = stages + stage * Shared::kStageElements;
    scores.write(shared, keys);
    __syncthreads();
    softmax.update(shared, tile, scale, sign);
    __syncthreads();
    output.update(shared, keys);
    stage = stage + 1 == num_stages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  softmax.finish();
  if (splits.count > 1) {
    const SplitPartial<kRows, kLatentRank> partial(call.decode_partials,
                                                   static_cast<int64_t>(tile_of_rows) * call.max_decode_splits + split);
    if (softmax.lane == 0) {
      partial.max_exponent(softmax.row) = softmax.base * scale;
      partial.sum(softmax.row) = softmax.sum;
    }
    output.for_each_pair(
        [&](int row, int column, float2 pair) { *reinterpret_cast<float2*>(partial.out(row) + column) = pair; });
    return;
  }
  __syncthreads();  // factors have been read
  if (softmax.lane == 0) shared.factors[softmax.row] = 1.0f / softmax.sum;
  __syncthreads();
  output.scale(shared, true);
  output.for_each_pair([&](int row, int column, float2 pair) {
    if (first_row + row >= total_rows) return;
    T* const out = static_cast<T*>(call.out) + static_cast<int64_t>(first_row + row) * kLatentRank;
    *reinterpret_cast<uint32_t*>(out + column) = packed<T>(pair.x, pair.y);
  });
}

}  // namespace aether
