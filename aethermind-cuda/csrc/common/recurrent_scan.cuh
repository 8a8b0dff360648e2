// Linear recurrences whose state is a float32 matrix S [depth, width] per head: gated_delta_rule and ssd_scan. For each
// token with query q and key k [depth], value v [width], and scalars decay and beta:
//
//     u = beta · v, or with the delta rule beta · (v - decay · Sᵀ k)
//     out = decay · Sᵀ q + (k · q) u + skip · v        S = decay · S + k uᵀ
//
// which is Sᵀ q of the new state, written such that both products read the old one.
//
// A block computes kBlockColumns columns of a head for all tokens of a sequence, one by one. Its part of the state is
// in registers from the first token to the last, so it is read and written once, and a sequence gets the same bits in
// any batch and in any division into steps.
//
// A long sequence has one warp a scheduler, which waits for every latency that its own instructions do not fill:
// - Only Sᵀ k is between a state and the next. While its sums over lanes are under way, Sᵀ q and decay · S are computed
//   and the next token is loaded to registers.
// - Sums of Sᵀ q are those of a batch of tokens at once, and are taken during the batch after it.
// - Tokens come to shared memory by cp.async, one by each warp, two batches ahead. In the middle of the batch before
//   theirs they are scaled and converted to float32, for all threads.
#pragma once

#include "common/recurrent_tokens.cuh"
#include "common/state_tile.cuh"

namespace aether {

// The block's place: sequence blockIdx.y, and blockIdx.x is a head by blocks of columns.
struct BlockPlace {
  StateSequence sequence;
  int head;
  int column;
  float* matrix;
  bool is_whole;  // all of the block's rows and columns are of the state

  __device__ __forceinline__ BlockPlace(const RecurrentScan& call, int compiled_depth)
      : sequence(call.sequences, static_cast<int>(blockIdx.y)) {
    const int num_blocks = (call.width + kBlockColumns - 1) / kBlockColumns;
    head = static_cast<int>(blockIdx.x) / num_blocks;
    column = static_cast<int>(blockIdx.x) % num_blocks * kBlockColumns;
    matrix = call.state + (sequence.slot * call.num_heads + head) * call.depth * call.width;
    is_whole = call.depth == compiled_depth && call.width % kBlockColumns == 0;
  }
};

// Writes the results of batches one after another.
template <class T>
class ResultRows {
 public:
  __device__ __forceinline__ ResultRows(const RecurrentScan& call, const BlockPlace& place, int first_column)
      : row_size_(call.num_heads * call.width) {
    const int column = first_column + BatchResults::lane_column();
    const int row = place.sequence.begin + BatchResults::lane_token();
    rows_ = static_cast<T*>(call.out) + static_cast<int64_t>(row) * row_size_ + place.head * call.width + column;
    has_column_ = column < call.width;
  }

  __device__ __forceinline__ void store(const BatchResults& results, int count) {
    const float sum = results.sums();
    if (has_column_ && BatchResults::lane_token() < count) {
      *rows_ = from_float<T>(sum);
    }
    rows_ += count == 0 ? 0 : kBatchTokens * row_size_;
  }

 private:
  T* rows_;
  int row_size_;
  bool has_column_;
};

// Processes `count` tokens of a batch that is in shared memory.
template <class Tile, int kDepth>
__device__ __forceinline__ BatchResults take_up_some(Tile& tile, const StagedToken<kDepth>* tokens, int count) {
  BatchResults results{};
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    float result[kThreadColumns];
    typename Tile::Token token;
    if constexpr (Tile::kIsAhead) {
      token = tile.token_of(tokens[i]);
    }
    tile.take_up(token, tokens[i], tokens[i], result);
#pragma unroll
    for (int slot = 0; slot < kBatchTokens; ++slot) {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        results.values[slot][c] = slot == i ? result[c] : results.values[slot][c];
      }
    }
  }
  return results;
}

// The scan of a step in which sequences have a token each, or of inputs that are not aligned: a batch of tokens is
// loaded after the one before. A block of kScanThreads threads, with StagedToken<kDepth>[2 · kBatchTokens] of dynamic
// shared memory.
template <class T, bool kIsDelta, int kDepth>
__device__ __forceinline__ void recurrent_step(const RecurrentScan& call) {
  AETHER_DYNAMIC_SHARED(StagedToken<kDepth>, staged);  // [2][kBatchTokens]
  const BlockPlace place(call, kDepth);
  const StateSequence& sequence = place.sequence;
  if (sequence.begin == sequence.end) {
    return;
  }
  StateTile<kIsDelta, false, kDepth> tile(place.column);
  if (sequence.is_new) {
    tile.clear();
  } else {
    tile.load(place.matrix, call.depth, call.width, place.is_whole);
  }
  const HeadInputs<T, kIsDelta, kDepth> inputs(call, place.head, place.column);
  ResultRows<T> rows(call, place, tile.column);
  StagedToken<kDepth>* tokens = staged;
#pragma unroll 1
  for (int first = sequence.begin; first < sequence.end; first += kBatchTokens) {
    const int left = sequence.end - first, count = left < kBatchTokens ? left : kBatchTokens;
    if (warp_index() < count) {
      inputs.load(first + warp_index()).stage(tokens[warp_index()], inputs.skip);
    }
    __syncthreads();
    rows.store(take_up_some(tile, tokens, count), count);
    tokens = tokens == staged ? staged + kBatchTokens : staged;  // others may still read these
  }
  tile.store(place.matrix, call.depth, call.width, place.is_whole);
}

// The scan after `prepare_scan`. A block of kScanThreads threads, with StagedToken<kDepth>[kStagedBatches ·
// kBatchTokens] and CopiedToken<T, kDepth>[kScanWarps] of dynamic shared memory.
template <class T, bool kIsDelta, int kDepth>
__device__ __forceinline__ void recurrent_scan(const RecurrentScan& call) {
  AETHER_DYNAMIC_SHARED(StagedToken<kDepth>, staged);  // [kStagedBatches][kBatchTokens]
  const BlockPlace place(call, kDepth);
  const StateSequence& sequence = place.sequence;
  if (sequence.begin == sequence.end) {
    return;
  }
  StagedToken<kDepth>* const end = staged + kStagedBatches * kBatchTokens;
  auto* copied = reinterpret_cast<CopiedToken<T, kDepth>*>(end);
  constexpr bool kLoadsAhead = !kIsDelta || kDepth <= 128;  // else there are no registers for it
  StateTile<kIsDelta, kLoadsAhead, kDepth> tile(place.column);
  if (sequence.is_new) {
    tile.clear();
  } else {
    tile.load(place.matrix, call.depth, call.width, place.is_whole);
  }
  TokenCopies<T, kIsDelta, kDepth> copies(HeadInputs<T, kIsDelta, kDepth>(call, place.head, place.column),
                                          copied[warp_index()], sequence.begin, sequence.end);
  ResultRows<T> rows(call, place, tile.column);
  copies.load();
  copies.stage(staged[warp_index()]);
  __syncthreads();
  StagedToken<kDepth>* tokens = staged;  // of the batch that is processed
  typename decltype(tile)::Token token;
  if constexpr (kLoadsAhead) {
    token = tile.token_of(*tokens);
  }
  BatchResults results{};
  int num_results = 0, left = sequence.end - sequence.begin;
  // The instructions of a whole batch are scheduled together. In a deep state that takes too many registers, so there
  // each token is a branch.
  constexpr int kLeastTokens = kDepth <= 128 ? kBatchTokens : 1;
#pragma unroll 1
  for (; left >= kLeastTokens; left -= kBatchTokens) {
    StagedToken<kDepth>* next = tokens + kBatchTokens;
    next = next == end ? staged : next;
    rows.store(results, num_results);  // of the batch before: their sums do not delay this one
    results = {};
    num_results = left;
#pragma unroll
    for (int i = 0; i < kBatchTokens; ++i) {
      if (i >= kLeastTokens && i >= left) {
        break;
      }
      if (i == 1) {
        copies.load();
      }
      if (i == 3) {
        __syncthreads();
      }
      tile.take_up(token, tokens[i], i + 1 < kBatchTokens ? tokens[i + 1] : *next, results.values[i]);
      if (i == 1) {
        copies.stage(next[warp_index()]);
      }
    }
    tokens = next;
  }
  rows.store(results, num_results);
  if (left > 0) {
    rows.store(take_up_some(tile, tokens, left), left);
  }
  wait_for_copies<0>();
  tile.store(place.matrix, call.depth, call.width, place.is_whole);
}

}  // namespace aether

// Entry points of an operator for a dtype: by the largest depth of states, the scan after `prepare_scan` and that of
// single tokens, with the numbers of their blocks on a multiprocessor; and `prepare_scan`.
#define AETHER_RECURRENT_SCAN_OF(name, is_delta, depth, blocks, step_blocks, dtype)                                \
  extern "C" __global__ void __launch_bounds__(128, blocks) name##_##depth##_##dtype(aether::RecurrentScan call) { \
    aether::begin_kernel();                                                                                        \
    aether::recurrent_scan<aether::dtype, is_delta, depth>(call);                                                  \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(128, step_blocks)                                                   \
      name##_step_##depth##_##dtype(aether::RecurrentScan call) {                                                  \
    aether::begin_kernel();                                                                                        \
    aether::recurrent_step<aether::dtype, is_delta, depth>(call);                                                  \
  }
#define AETHER_RECURRENT_SCAN(name, is_delta, dtype)                              \
  AETHER_RECURRENT_SCAN_OF(name, is_delta, 128, is_delta ? 2 : 4, 4, dtype)       \
  AETHER_RECURRENT_SCAN_OF(name, is_delta, 256, 2, is_delta ? 2 : 3, dtype)       \
  extern "C" __global__ void name##_prepare_##dtype(aether::RecurrentScan call) { \
    aether::begin_kernel();                                                       \
    aether::prepare_scan<aether::dtype, is_delta, 256>(call);                     \
  }
