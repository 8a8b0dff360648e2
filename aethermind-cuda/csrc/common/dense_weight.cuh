// 16 outputs of a row-major weight [num_outputs, num_inputs], as Products takes them.
#pragma once

#include "common/eight.cuh"
#include "common/products.cuh"

namespace aether {

template <class T>
struct DenseWeight {
  using Element = T;
  static constexpr bool kIsScaled = false;
  static constexpr int kChunks = 2;
  static constexpr int kGroupInputs = kChunks * kChunk;

  struct Group {
    Eight<T> rows[2][kChunks];
  };

  // Where a weight lies; an object of the kernel's arguments.
  struct Place {
    const T* address;
    int num_outputs;
    int num_inputs;
  };

  const T* rows[2];
  int num_inputs;
  bool is_aligned;

  // Outputs beyond the last are those of the last: whoever stores results leaves them out.
  __device__ __forceinline__ DenseWeight(const Place& place, int tile)
      : num_inputs(place.num_inputs), is_aligned(is_eights(place.address, place.num_inputs)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = min(tile * kTileOutputs + half * 8 + lane_index() / 4, place.num_outputs - 1);
      rows[half] = place.address + static_cast<int64_t>(output) * num_inputs;
    }
  }

  __device__ __forceinline__ Group load(int group) const {
    Group result;
    const int first = group * kGroupInputs + lane_index() % 4 * kEight;
    if (is_aligned) {  // one branch for all loads of a group
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const int k = first + chunk * kChunk;
          result.rows[half][chunk] = k < num_inputs ? *reinterpret_cast<const Eight<T>*>(rows[half] + k) : Eight<T>{};
        }
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          result.rows[half][chunk] = load_some(rows[half], first + chunk * kChunk, num_inputs);
        }
      }
    }
    return result;
  }

  __device__ __forceinline__ Eight<T> weights(const Group& group, int half, int chunk) const {
    return group.rows[half][chunk];
  }
};

}  // namespace aether
