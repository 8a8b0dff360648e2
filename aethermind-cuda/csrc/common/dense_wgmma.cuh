// Products of up to 128 tokens with dense 16-bit weights by wgmma, with swapped roles: outputs are the rows of a
// product and tokens its columns. Their time is that of reading the weights, so nothing may interrupt the stream: one
// thread copies tiles by the tensor memory accelerator, as far ahead as shared memory allows and from before the wait
// for the preceding kernel; the other warps multiply. They meet at barriers of stages only. With 128 tokens the sums
// leave no registers for a warp that only copies, so the thread belongs to the last warp that multiplies.
//
// A block has as many rows as let all blocks run at once. Where rows are too few for that, the blocks of a cluster
// divide the inputs, and add their sums through each other's shared memory in the order of their ranks.
#pragma once

#include "common/activations.cuh"
#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/tensor_copy.cuh"
#include "common/wgmma.cuh"

namespace aether {

struct DenseCall {
  void* out;         // [T, N] of T or float32
  const void* bias;  // [N], may be null; not of a SwiGLU
  int num_tokens;
  int num_outputs;  // a multiple of 4
  int num_steps;    // of 64 inputs, of which every block of a cluster has some
  int tile_rows;    // rows of weights of a block, a multiple of 16; half of them are rows of up in a SwiGLU
  int num_stages;
  int is_float32;
};

// Of the warp that only copies, and of the largest block. 64 sums and what addresses them take 96 registers, which the
// five warps that a scheduler then has leave to each (a sixth would leave 80).
__host__ __device__ constexpr int copy_threads(int tokens) { return tokens < 128 ? 32 : 0; }
__host__ __device__ constexpr int max_dense_threads(int tokens) { return 5 * 128 + copy_threads(tokens); }

template <class T, int kTokens, int kSplits, bool kGated>
class DenseWgmma {
 public:
  // Two maps of the weights, of which a block reads `tile_rows` / 2 rows each: gate and up, or the same one twice.
  __device__ __forceinline__ DenseWgmma(const TensorMap& first, const TensorMap& second, const TensorMap& inputs,
                                        const DenseCall& call, unsigned char* memory)
      : first_(first),
        second_(second),
        inputs_(inputs),
        call_(call),
        memory_(memory),
        stage_bytes_((call.tile_rows + kTokens) * kRowBytes),
        full_(reinterpret_cast<CopyBarrier*>(memory + call.num_stages * stage_bytes_)),
        empty_(full_ + call.num_stages),
        num_consumers_(static_cast<int>(blockDim.x) - copy_threads(kTokens)),
        split_(kSplits > 1 ? cluster_rank() : 0),
        tile_outputs_(kGated ? call.tile_rows / 2 : call.tile_rows),
        first_output_(static_cast<int>(blockIdx.x) / kSplits * tile_outputs_),
        begin_(call.num_steps * split_ / kSplits),
        num_steps_(call.num_steps * (split_ + 1) / kSplits - begin_) {}

  __device__ __forceinline__ void run() const {
    launch_dependents();
    if (is_copying()) {
      prefetch_map(first_);
      prefetch_map(second_);
      prefetch_map(inputs_);
#pragma unroll 1
      for (int stage = 0; stage < call_.num_stages; ++stage) {
        full_[stage].initialize(1);
        empty_[stage].initialize(num_consumers_ / kWarpSize);
      }
      publish_barriers();
#pragma unroll 1
      for (int step = 0; step < min(num_steps_, call_.num_stages); ++step) {
        copy_weights(step, step);
      }
    }
    __syncwarp();
    __syncthreads();
    wait_for_predecessor();
    if (is_copying()) {
      copy_first_inputs();
    }
    __syncwarp();
    if (!kHasCopyWarp || static_cast<int>(threadIdx.x) < num_consumers_) {
      multiply();
    } else if (is_copying()) {
      copy();
    }
  }

 private:
  static constexpr int kRowBytes = 128;
  static constexpr bool kHasCopyWarp = copy_threads(kTokens) > 0;
  static constexpr int kConsumerBarrier = 1;

  const TensorMap& first_;
  const TensorMap& second_;
  const TensorMap& inputs_;
  const DenseCall& call_;
  unsigned char* memory_;
  int stage_bytes_;
  CopyBarrier* full_;
  CopyBarrier* empty_;
  int num_consumers_;
  int split_;
  int tile_outputs_;
  int first_output_;
  int begin_;
  int num_steps_;

  // The stage counts the bytes of its inputs, too.
  __device__ __forceinline__ void copy_weights(int step, int stage) const {
    unsigned char* const to = memory_ + stage * stage_bytes_;
    const int column = (begin_ + step) * kTileDepth, half = call_.tile_rows / 2;
    full_[stage].arrive_and_expect(stage_bytes_);
    copy_tile(to, first_, first_output_, column, full_[stage], evict_first());
    copy_tile(to + half * kRowBytes, second_, first_output_ + (kGated ? 0 : half), column, full_[stage], evict_first());
  }

  __device__ __forceinline__ void copy_inputs(int step, int stage) const {
    unsigned char* const to = memory_ + stage * stage_bytes_ + call_.tile_rows * kRowBytes;
    copy_tile(to, inputs_, 0, (begin_ + step) * kTileDepth, full_[stage], evict_last());
  }

  // The first thread of the last warp.
  __device__ __forceinline__ bool is_copying() const { return threadIdx.x == blockDim.x - kWarpSize; }

  __device__ __forceinline__ void copy_first_inputs() const {
#pragma unroll 1
    for (int step = 0; step < min(num_steps_, call_.num_stages); ++step) {
      copy_inputs(step, step);
    }
  }

  // A later step, as soon as the products of `stage` are done.
  __device__ __forceinline__ void copy_step(int step, int stage, int phase) const {
    empty_[stage].wait(phase);
    copy_weights(step, stage);
    copy_inputs(step, stage);
  }

  __device__ __forceinline__ void copy() const {
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int step = call_.num_stages; step < num_steps_; ++step) {
      copy_step(step, stage, phase);
      advance(stage, phase);
    }
  }

  __device__ __forceinline__ void advance(int& stage, int& phase) const {
    if (++stage == call_.num_stages) {
      stage = 0;
      phase ^= 1;
    }
  }

  // The last warps of a block may have rows beyond its tile: they multiply what is behind it in memory, since all warps
  // of a group do so together, and do not store the sums.
  __device__ __forceinline__ bool has_rows() const { return warp_index() * 16 < call_.tile_rows; }

  __device__ __forceinline__ void multiply() const {
    float sums[kTokens / 2];
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int step = 0; step < num_steps_; ++step) {
      full_[stage].wait(phase);
      const unsigned char* const tile = memory_ + stage * stage_bytes_;
      const auto* const rows = reinterpret_cast<const Vector<T>*>(tile + warp_index() / 4 * 64 * kRowBytes);
      const auto* const tokens = reinterpret_cast<const Vector<T>*>(tile + call_.tile_rows * kRowBytes);
      begin_products();
      multiply_tiles<T>(sums, rows, tokens, step > 0, has_rows());
      commit_products();
      wait_for_products<0>();
      if (lane_index() == 0) {
        empty_[stage].arrive();
      }
      if constexpr (!kHasCopyWarp) {
        if (is_copying() && step + call_.num_stages < num_steps_) {
          copy_step(step + call_.num_stages, stage, phase);
        }
        __syncwarp();
      }
      advance(stage, phase);
    }
    float* const partial = reinterpret_cast<float*>(memory_);
    synchronize_threads(kConsumerBarrier, num_consumers_);  // the stages are free
    if (has_rows()) {
      store_sums(sums, partial);
    }
    if constexpr (kSplits > 1) {
      synchronize_cluster();
    } else {
      synchronize_threads(kConsumerBarrier, num_consumers_);
    }
    write(partial);
    if constexpr (kSplits > 1) {
      leave_cluster();  // others may still read the sums
    }
  }

  // Floats between tokens: no bank conflicts.
  __device__ __forceinline__ int pitch() const { return call_.tile_rows + 4; }

  // Thread t = 32 w + 4 g + i holds rows g and g + 8 of its warp's 16 for tokens 8 j + 2 i and the next one.
  __device__ __forceinline__ void store_sums(const float (&sums)[kTokens / 2], float* partial) const {
    const int lane = lane_index(), row = warp_index() * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        partial[(8 * j + 2 * (lane % 4) + r % 2) * pitch() + row + r / 2 * 8] = sums[4 * j + r];
      }
    }
  }

  __device__ __forceinline__ static Vector<float> sum_of(const float* partial) {
    if constexpr (kSplits == 1) {
      return Vector<float>::load(partial);
    } else {
      Vector<float> parts[kSplits];
#pragma unroll
      for (int i = 0; i < kSplits; ++i) {
        parts[i] = load_from_rank(partial, i);
      }
#pragma unroll
      for (int i = 1; i < kSplits; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          parts[0].values[e] += parts[i].values[e];
        }
      }
      return parts[0];
    }
  }

  // Blocks that divide the inputs also divide the outputs, four of one token at a time.
  __device__ __forceinline__ void write(const float* partial) const {
    const int quads = tile_outputs_ / 4, count = call_.num_tokens * quads;
    for (int i = split_ * num_consumers_ + static_cast<int>(threadIdx.x); i < count; i += kSplits * num_consumers_) {
      const int token = i / quads, row = i % quads * 4, output = first_output_ + row;
      if (output >= call_.num_outputs) {
        continue;
      }
      Vector<float> sum = sum_of(partial + token * pitch() + row);
      if constexpr (kGated) {
        const Vector<float> up = sum_of(partial + token * pitch() + call_.tile_rows / 2 + row);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum.values[e] = silu_for<T>(sum.values[e]) * up.values[e];
        }
      } else if (call_.bias != nullptr) {
        const auto bias = Vector<T, 4>::load(static_cast<const T*>(call_.bias) + output);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum.values[e] += to_float(bias.values[e]);
        }
      }
      const int64_t at = static_cast<int64_t>(token) * call_.num_outputs + output;
      if (call_.is_float32) {
        sum.store(static_cast<float*>(call_.out) + at);
        continue;
      }
      Vector<T, 4> result;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        result.values[e] = from_float<T>(sum.values[e]);
      }
      result.store(static_cast<T*>(call_.out) + at);
    }
  }
};

// Grid: tiles of outputs, times the blocks of a cluster. Block: 128 threads for every 64 rows of a tile, and
// `copy_threads`.
template <class T, int kTokens, int kSplits, bool kGated>
__device__ __forceinline__ void multiply_dense_wgmma(const TensorMap& first, const TensorMap& second,
                                                     const TensorMap& inputs, const DenseCall& call) {
  AETHER_OPERAND_MEMORY(unsigned char, memory);
  DenseWgmma<T, kTokens, kSplits, kGated>(first, second, inputs, call, reinterpret_cast<unsigned char*>(memory)).run();
}

}  // namespace aether
