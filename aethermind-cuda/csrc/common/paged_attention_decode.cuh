// Paged attention of sequences with few queries (Flash-Decoding, Dao et al. 2023). It is bound by reading keys and
// values, so each key is read once for all heads of its group, and long sequences are split among blocks.
//
// The eight warps of a block process 16 keys per step in turn. A warp prefetches its next keys and values as soon as it
// has multiplied the present ones, and synchronises with the other warps only at the end, to merge their softmaxes.
#pragma once

#include "common/async_copy.cuh"
#include "common/decode_softmax.cuh"
#include "common/decode_tile.cuh"

namespace aether {

constexpr int kDecodeWarps = 8;

template <class T, class Operands, int kHeadDim, int kRows>
struct DecodeShared {
  static constexpr int kRowBytes = kRowStride<kHeadDim> * static_cast<int>(sizeof(T));
  static constexpr int kQueryBytes = kRows * kRowBytes;
  static constexpr int kElementBytes = static_cast<int>(sizeof(typename Operands::Element));
  static constexpr int kTileBytes = kDecodeKeys * Operands::kStride * kElementBytes;
  static constexpr int kWarpBytes = 2 * Operands::kStages * kTileBytes;  // stages of keys, then stages of values
  static constexpr int kSumsStride = kHeadDim + 4;  // row stride of accumulators: pairs of rows are in different banks
  static_assert(kWarpBytes >= kRows * kSumsStride * static_cast<int>(sizeof(float)), "a warp leaves its sums there");
  static_assert(kQueryBytes >= 2 * kDecodeWarps * kRows * static_cast<int>(sizeof(float)));
};

// Copies the queries of a tile to shared memory, padded with zeros.
template <class T, int kHeadDim, int kRows>
__device__ __forceinline__ void stage_queries(T* queries, const AttentionCall& call, const DecodeTile& tile) {
  constexpr int kPieces = kHeadDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += static_cast<int>(blockDim.x)) {
    const int row = i / kPieces, dim = i % kPieces * 8;
    uint4 piece{0, 0, 0, 0};
    if (row < tile.num_rows() && dim < call.head_dim) {
      const T* q = static_cast<const T*>(call.q) + tile.head_of_row(row, call.num_heads) * call.head_dim;
      piece = *reinterpret_cast<const uint4*>(q + dim);
      const uint32_t sign = query_sign(call.scale);
      piece = {piece.x ^ sign, piece.y ^ sign, piece.z ^ sign, piece.w ^ sign};
    }
    *reinterpret_cast<uint4*>(queries + row * kRowStride<kHeadDim> + dim) = piece;
  }
}

// An invalid cache row. Row indices fit into 32 bits, since rows have at least 16 bytes.
constexpr uint32_t kNoRow = 0xffffffffu;

// The cache row of this lane's key among the 16 from `first` on; both halves of a warp get the same rows.
__device__ __forceinline__ uint32_t row_of_lane(const PagedRows& rows, int first, int end) {
  const int key = first + lane_index() % kDecodeKeys;
  return key < end ? static_cast<uint32_t>(rows(key)) : kNoRow;
}

// Issues asynchronous copies of the rows in `row_of_lane`. Missing rows and elements are zero-filled unless kIsWhole,
// because a weight of 0 times uninitialised memory may be NaN.
template <class Operands, int kHeadDim, bool kIsWhole>
__device__ __forceinline__ void stage_rows(unsigned char* tile, const void* cache, uint32_t row_of_lane, int head_dim) {
  using Element = typename Operands::Element;
  constexpr int kPerPiece = 16 / static_cast<int>(sizeof(Element)), kPieces = kHeadDim / kPerPiece;
  static_assert(kDecodeKeys * kPieces % kWarpSize == 0);
#pragma unroll
  for (int i = 0; i < kDecodeKeys * kPieces / kWarpSize; ++i) {
    const int piece = lane_index() + i * kWarpSize, key = piece / kPieces, dim = piece % kPieces * kPerPiece;
    const uint32_t row = __shfl_sync(kFullWarp, row_of_lane, key);
    Element* const to = reinterpret_cast<Element*>(tile) + key * Operands::kStride + dim;
    const Element* const from = static_cast<const Element*>(cache) + dim;
    if constexpr (kIsWhole) {
      copy_async_16(to, from + static_cast<uint64_t>(row) * kHeadDim, true);
    } else {
      const bool is_present = row != kNoRow && dim < head_dim;
      copy_async_16(to, is_present ? from + static_cast<uint64_t>(row) * static_cast<uint32_t>(head_dim) : cache,
                    is_present);
    }
  }
}

// The scales of 16 keys in lanes 0 … 15, and of their values in lanes 16 … 31.
__device__ __forceinline__ float scale_of_lane(const AttentionCall& call, uint32_t row_of_lane) {
  if (row_of_lane == kNoRow) return 0.0f;
  return (lane_index() < kDecodeKeys ? call.k_scale : call.v_scale)[row_of_lane];
}

// Multiplies scores by the scales of their quantised keys.
template <int kTiles>
__device__ __forceinline__ void scale_scores(float (&scores)[kTiles][4], float scales, int first_lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float scale = __shfl_sync(kFullWarp, scales, first_lane + 8 * half + lane_index() / 4);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      scores[tile][2 * half] *= scale;
      scores[tile][2 * half + 1] *= scale;
    }
  }
}

// Caps scores, and adds the slopes of their heads.
template <int kTiles>
__device__ __forceinline__ void transform_scores(float (&scores)[kTiles][4], const AttentionCall& call,
                                                 const DecodeTile& tile, int first) {
  if (call.softcap > 0.0f) {
    const ScoreCap cap(call.softcap, call.scale);
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) scores[i / 4][i % 4] = cap(scores[i / 4][i % 4]);
  }
  if (call.slopes == nullptr) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = t * kTileRows + lane_index() % 4 * 2 + r;
      const float slope = call.score_slope(tile.query_head_of_row(row));
      const int distance = first + lane_index() / 4 - tile.position_of_row(row);
      scores[t][r] = fmaf(slope, static_cast<float>(distance), scores[t][r]);
      scores[t][r + 2] = fmaf(slope, static_cast<float>(distance + 8), scores[t][r + 2]);
    }
  }
}

// Masks the scores of keys that a row must not attend to.
template <int kTiles>
__device__ __forceinline__ void mask_scores(float (&scores)[kTiles][4], const DecodeTile& tile, int window, int first) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int row = i / 4 * kTileRows + lane_index() % 4 * 2 + i % 2, key = first + i % 4 / 2 * 8 + lane_index() / 4;
    const KeyRange visible = KeyRange::of_position(tile.position_of_row(row), window);
    if (!visible.has(key)) scores[i / 4][i % 4] = kMinusInfinity;
  }
}

// Merges the softmax states of all warps and writes the output, or a partial to the workspace where keys are split.
template <class T, class Operands, int kHeadDim, int kTiles>
__device__ __forceinline__ void merge_warps(unsigned char* shared, const DecodeSoftmax<kHeadDim, kTiles>& softmax,
                                            const AttentionCall& call, const DecodeTile& tile, const KvSplits& splits) {
  constexpr int kRows = kTiles * kTileRows;
  using Shared = DecodeShared<T, Operands, kHeadDim, kRows>;
  const auto sums_of = [&](int warp) {
    return reinterpret_cast<float*>(shared + Shared::kQueryBytes + warp * Shared::kWarpBytes);
  };
  float* maxima = reinterpret_cast<float*>(shared);  // [warps, rows], followed by the sums of weights
  float* weights = maxima + kDecodeWarps * kRows;
  __syncthreads();  // queries and keys have been read
  float* warp_sums = sums_of(warp_index());
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int row = t * kTileRows + lane_index() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        warp_sums[(row + i % 2) * Shared::kSumsStride + Operands::dim(n, i / 2)] = softmax.out[t][n][i];
      }
    }
    if (lane_index() < 4) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        maxima[warp_index() * kRows + row + r] = softmax.base[t][r];
        weights[warp_index() * kRows + row + r] = softmax.sum[t][r];
      }
    }
  }
  __syncthreads();
  const SplitPartial<kDecodeRows, kHeadDim> partial(call.decode_partials,
                                                    tile.first_partial(call) + static_cast<int>(blockIdx.z));
  constexpr int kVectorsPerRow = kHeadDim / 4;
  const int count = tile.num_rows() * kVectorsPerRow;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int r = i / kVectorsPerRow, dim = i % kVectorsPerRow * 4;
    float row_max = kMinusInfinity, sum = 0.0f, out[4] = {};
#pragma unroll
    for (int warp = 0; warp < kDecodeWarps; ++warp) row_max = fmaxf(row_max, maxima[warp * kRows + r]);
#pragma unroll
    for (int warp = 0; warp < kDecodeWarps; ++warp) {
      const float warp_max = maxima[warp * kRows + r];
      const float rescale =
          warp_max == kMinusInfinity ? 0.0f : fast_exp2(warp_max - row_max);  // the warp had no visible key of this row
      const float4 sums = *reinterpret_cast<const float4*>(sums_of(warp) + r * Shared::kSumsStride + dim);
      sum += rescale * weights[warp * kRows + r];
      out[0] += rescale * sums.x;
      out[1] += rescale * sums.y;
      out[2] += rescale * sums.z;
      out[3] += rescale * sums.w;
    }
    if (splits.count > 1) {
      *reinterpret_cast<float4*>(partial.out(r) + dim) = {out[0], out[1], out[2], out[3]};
      if (dim == 0) {
        partial.max_exponent(r) = row_max;
        partial.sum(r) = sum;
      }
    } else if (dim < call.head_dim) {
      T* target = static_cast<T*>(call.out) + tile.head_of_row(r, call.num_heads) * call.head_dim + dim;
      sum += fast_exp2(call.sink_exponent(tile.query_head_of_row(r)) - row_max);
      const float inverse = 1.0f / sum;
      *reinterpret_cast<uint2*>(target) = {packed<T>(out[0] * inverse, out[1] * inverse),
                                           packed<T>(out[2] * inverse, out[3] * inverse)};
    }
  }
}

template <class T, class Operands, int kHeadDim, int kRows, bool kIsQuantized>
__device__ __forceinline__ void attend_decode(const AttentionCall& call) {
  constexpr int kTiles = kRows / kTileRows, kStages = Operands::kStages;
  using Shared = DecodeShared<T, Operands, kHeadDim, kRows>;
  using Element = typename Operands::Element;
  AETHER_DYNAMIC_SHARED(unsigned char, shared);
  const DecodeTile tile(call, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (!tile.has_rows) return;
  const KvSplits splits = tile.splits(call);
  if (static_cast<int>(blockIdx.z) >= splits.count) return;
  const KeyRange split = splits.split(static_cast<int>(blockIdx.z));
  const PagedRows rows = call.rows(tile.queries.sequence, tile.kv_head);

  unsigned char* warp_keys = shared + Shared::kQueryBytes + warp_index() * Shared::kWarpBytes;
  unsigned char* warp_values = warp_keys + kStages * Shared::kTileBytes;
  constexpr int kStep = kDecodeWarps * kDecodeKeys;
  int first = split.begin + warp_index() * kDecodeKeys;
  const int last_whole = call.head_dim == kHeadDim ? split.end - kDecodeKeys : -1;
  const auto prefetch = [&](unsigned char* to, const void* cache, int stage, int key, uint32_t row) {
    unsigned char* const tile_of_stage = to + stage * Shared::kTileBytes;
    if (key <= last_whole) {
      stage_rows<Operands, kHeadDim, true>(tile_of_stage, cache, row, kHeadDim);
    } else if (key < split.end) {
      stage_rows<Operands, kHeadDim, false>(tile_of_stage, cache, row, call.head_dim);
    }
    commit_copies();
  };
  // Block table entries are loaded one step before they are used.
  uint32_t next_rows[kStages + 1];  // of this step and the next ones
#pragma unroll
  for (int s = 0; s <= kStages; ++s) next_rows[s] = row_of_lane(rows, first + s * kStep, split.end);
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    prefetch(warp_keys, call.k_cache, s, first + s * kStep, next_rows[s]);
    prefetch(warp_values, call.v_cache, s, first + s * kStep, next_rows[s]);
  }
  float next_scales = 0.0f;
  if constexpr (kIsQuantized) next_scales = scale_of_lane(call, next_rows[0]);

  T* queries = reinterpret_cast<T*>(shared);
  stage_queries<T, kHeadDim, kRows>(queries, call, tile);
  __syncthreads();
  // The queries of one tile are kept in registers; there are not enough registers for two.
  uint32_t q[kHeadDim / 32][4];
  if constexpr (kTiles == 1) {
#pragma unroll
    for (int d = 0; d < kHeadDim / 32; ++d) Operands::load_queries(q[d], queries, d);
  }

  const KeyRange visible_to_all_rows = {KeyRange::of_position(tile.position_of_row(kRows - 1), call.window).begin,
                                        KeyRange::of_position(tile.position_of_row(0), call.window).end};
  DecodeSoftmax<kHeadDim, kTiles> softmax;
  const float scale = positive_scale(call.scale);
  for (int stage = 0; first < split.end; first += kStep, stage = kStages == 1 ? 0 : stage ^ 1) {
    const uint32_t prefetch_row = next_rows[kStages];  // rows of the step that this stage prefetches next
    const float scales = next_scales;
    if constexpr (kIsQuantized) next_scales = scale_of_lane(call, next_rows[1]);
#pragma unroll
    for (int s = 0; s < kStages; ++s) next_rows[s] = next_rows[s + 1];
    next_rows[kStages] = row_of_lane(rows, first + (kStages + 1) * kStep, split.end);

    wait_for_copies<2 * kStages - 1>();
    __syncwarp();
    const Element* keys = reinterpret_cast<const Element*>(warp_keys + stage * Shared::kTileBytes);
    float scores[kTiles][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim / 32; ++d) {
      uint32_t a[2][4];
      Operands::load_keys(a, keys, d);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kTiles > 1) Operands::load_queries(q[d], queries + t * kTileRows * kRowStride<kHeadDim>, d);
        multiply_add<T>(scores[t], a[0], q[d][0], q[d][1]);
        multiply_add<T>(scores[t], a[1], q[d][2], q[d][3]);
      }
    }
    __syncwarp();
    prefetch(warp_keys, call.k_cache, stage, first + kStages * kStep, prefetch_row);

    if constexpr (kIsQuantized) scale_scores(scores, scales, 0);
    if (call.transforms_scores()) transform_scores(scores, call, tile, first);
    if (!(visible_to_all_rows.has(first) && visible_to_all_rows.has(first + kDecodeKeys - 1))) {
      mask_scores(scores, tile, call.window, first);
    }
    softmax.update(scores, scale);
    if constexpr (kIsQuantized) scale_scores(scores, scales, kDecodeKeys);
    wait_for_copies<2 * kStages - 1>();
    __syncwarp();
    const Element* values = reinterpret_cast<const Element*>(warp_values + stage * Shared::kTileBytes);
    softmax.template add_values<T, Operands>(scores, values);
    __syncwarp();
    prefetch(warp_values, call.v_cache, stage, first + kStages * kStep, prefetch_row);
  }
  wait_for_copies<0>();
  softmax.finish(scale);
  merge_warps<T, Operands, kHeadDim>(shared, softmax, call, tile, splits);
}

template <class T, bool kIsQuantized, int kHeadDim, int kRows>
__device__ __forceinline__ void paged_attention_decode(const AttentionCall& call) {
  if constexpr (!kIsQuantized) {
    attend_decode<T, FloatOperands<T, kHeadDim>, kHeadDim, kRows, false>(call);
  } else if (static_cast<CodeType>(call.code_type) == CodeType::kInt8) {
    attend_decode<T, CodeOperands<T, kHeadDim, CodeType::kInt8>, kHeadDim, kRows, true>(call);
  } else {
    attend_decode<T, CodeOperands<T, kHeadDim, CodeType::kFloat8>, kHeadDim, kRows, true>(call);
  }
}

}  // namespace aether
