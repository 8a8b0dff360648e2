// causal_conv1d: a depthwise convolution over the rows of each sequence and the J rows before them, its state.
//
// A thread computes a vector of channels. Block (x, y, z) takes channels x of sequence y, and its tiles z, z +
// gridDim.z and so on of kTileRows rows. Only the first tile reads the state (kTileRows is more than J), so the block
// that computes it replaces the state by the sequence's last J rows.

#include "common/activations.cuh"
#include "common/dependent_launch.cuh"
#include "common/state_slots.cuh"
#include "common/types.cuh"

namespace aether {

constexpr int kTileRows = 16;
constexpr int kRunRows = 4;  // of four taps, computed at once

// The layout of `_CausalConv1d` in kernels/recurrent.py. T tokens, C channels, `num_before` is J.
struct CausalConv1d {
  void* out;         // [T, C]
  float* state;      // [N, J, C], updated in place
  const void* x;     // [T, C]
  const void* w;     // [J + 1, C]
  const void* bias;  // [C], may be null
  StateSlots sequences;
  int num_channels;
  int num_before;
  int has_silu;
  int is_wide;  // a thread has 16 bytes of channels, else one channel
};

template <class T, int N>
__device__ __forceinline__ Vector<float, N> to_floats(const Vector<T, N>& values) {
  Vector<float, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    result.values[i] = to_float(values.values[i]);
  }
  return result;
}

template <class T, int N>
__device__ __forceinline__ Vector<float, N> floats_at(const T* address) {
  return to_floats(Vector<T, N>::load(address));
}

template <int N>
__device__ __forceinline__ void add_product(Vector<float, N>& sums, const Vector<float, N>& a,
                                            const Vector<float, N>& b) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sums.values[i] = fmaf(a.values[i], b.values[i], sums.values[i]);
  }
}

// Rows of states, of up to 32 bytes a thread.
template <int N>
__device__ __forceinline__ Vector<float, N> state_row(const float* address) {
  constexpr int kWords = N < 4 ? N : 4;
  Vector<float, N> result;
#pragma unroll
  for (int first = 0; first < N; first += kWords) {
    const auto words = Vector<float, kWords>::load(address + first);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      result.values[first + i] = words.values[i];
    }
  }
  return result;
}

template <int N>
__device__ __forceinline__ void put_state_row(float* address, const Vector<float, N>& row) {
  constexpr int kWords = N < 4 ? N : 4;
#pragma unroll
  for (int first = 0; first < N; first += kWords) {
    Vector<float, kWords> words;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words.values[i] = row.values[first + i];
    }
    words.store(address + first);
  }
}

// N channels of one sequence from `channel` on. Pointers are those of its first row and of its state.
template <class T, int N>
struct Channels {
  const CausalConv1d& call;
  const StateSequence& sequence;
  const T* x;
  T* out;
  float* state;
  int channel;

  // Row `row` of the sequence; before the first one (at -J and above), of its state.
  __device__ __forceinline__ Vector<float, N> input(int row) const {
    const int64_t stride = call.num_channels;
    if (row >= 0) {
      return floats_at<T, N>(x + row * stride);
    }
    Vector<float, N> before{};
    if (!sequence.is_new) {
      before = state_row<N>(state + (call.num_before + row) * stride);
    }
    return before;
  }

  __device__ __forceinline__ Vector<float, N> bias() const {
    const T* biases = static_cast<const T*>(call.bias);
    return biases == nullptr ? Vector<float, N>{} : floats_at<T, N>(biases + channel);
  }

  __device__ __forceinline__ Vector<float, N> weights(int tap) const {
    return floats_at<T, N>(static_cast<const T*>(call.w) + static_cast<int64_t>(tap) * call.num_channels + channel);
  }

  __device__ __forceinline__ void store(int row, const Vector<float, N>& sums) const {
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      result.values[i] = from_float<T>(call.has_silu != 0 ? silu_for<T>(sums.values[i]) : sums.values[i]);
    }
    result.store(out + static_cast<int64_t>(row) * call.num_channels);
  }

  __device__ __forceinline__ void convolve(int row) const {
    Vector<float, N> sums = bias();
    for (int j = 0; j <= call.num_before; ++j) {
      add_product(sums, weights(j), input(row + j - call.num_before));
    }
    store(row, sums);
  }

  // Rows from `row` on, and kTaps - 1 before them, are those of the sequence: each is loaded once.
  template <int kTaps>
  __device__ __forceinline__ void convolve_run(int row) const {
    const int64_t stride = call.num_channels;
    Vector<T, N> rows[kRunRows + kTaps - 1];
#pragma unroll
    for (int i = 0; i < kRunRows + kTaps - 1; ++i) {
      rows[i] = Vector<T, N>::load(x + (row + i - (kTaps - 1)) * stride);
    }
    Vector<float, N> sums[kRunRows];
#pragma unroll
    for (int i = 0; i < kRunRows; ++i) {
      sums[i] = bias();
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const auto weight = weights(j);
#pragma unroll
      for (int i = 0; i < kRunRows; ++i) {
        add_product(sums[i], weight, to_floats(rows[i + j]));
      }
    }
#pragma unroll
    for (int i = 0; i < kRunRows; ++i) {
      store(row + i, sums[i]);
    }
  }

  // Rows `begin` to `end` - 1.
  template <int kTaps>
  __device__ __forceinline__ void convolve_rows(int begin, int end) const {
    for (int row = begin; row < end;) {
      if (row >= kTaps - 1 && row + kRunRows <= end) {
        convolve_run<kTaps>(row);
        row += kRunRows;
      } else {
        convolve(row);
        ++row;
      }
    }
  }

  // A row of the state is replaced by a later row, so in ascending order no row is read after it was written.
  __device__ __forceinline__ void replace_state(int num_rows) const {
    for (int j = 0; j < call.num_before; ++j) {
      const auto values = input(num_rows + j - call.num_before);
      put_state_row(state + static_cast<int64_t>(j) * call.num_channels, values);
    }
  }
};

template <class T, int N>
__device__ __forceinline__ void causal_conv1d_of(const CausalConv1d& call) {
  const StateSequence sequence(call.sequences, static_cast<int>(blockIdx.y));
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;
  const int num_rows = sequence.end - sequence.begin;
  if (num_rows == 0 || channel >= call.num_channels) {
    return;
  }
  const int64_t offset = static_cast<int64_t>(sequence.begin) * call.num_channels + channel;
  const int64_t slot = sequence.slot * call.num_before * call.num_channels + channel;
  const Channels<T, N> channels{
      call,   sequence, static_cast<const T*>(call.x) + offset, static_cast<T*>(call.out) + offset, call.state + slot,
      channel};
  const int step = static_cast<int>(gridDim.z) * kTileRows;
  for (int tile = static_cast<int>(blockIdx.z) * kTileRows; tile < num_rows; tile += step) {
    const int end = num_rows < tile + kTileRows ? num_rows : tile + kTileRows;
    if (call.num_before == 3) {
      channels.template convolve_rows<4>(tile, end);
    } else {
      for (int row = tile; row < end; ++row) {
        channels.convolve(row);
      }
    }
  }
  if (blockIdx.z == 0) {
    channels.replace_state(num_rows);
  }
}

template <class T>
__device__ __forceinline__ void causal_conv1d(const CausalConv1d& call) {
  constexpr int kWide = Vector<T>::size;
  if (call.is_wide != 0) {
    causal_conv1d_of<T, kWide>(call);
  } else {
    causal_conv1d_of<T, 1>(call);
  }
}

}  // namespace aether

#define AETHER_CAUSAL_CONV1D(dtype)                                             \
  extern "C" __global__ void causal_conv1d_##dtype(aether::CausalConv1d call) { \
    aether::begin_kernel();                                                     \
    aether::causal_conv1d<aether::dtype>(call);                                 \
  }
AETHER_FOR_EACH_FLOAT(AETHER_CAUSAL_CONV1D)
