// The epilogue of the QKV projection (see common/projected_heads.cuh) for heads of whole 16-byte vectors: a few lanes
// process a head, so that a warp has several heads in flight and every access is 16 bytes wide.
#pragma once

#include "common/paged_cache.cuh"
#include "common/projected_heads.cuh"

namespace aether {

// This lane's share of a head: elements l · N … l · N + N - 1 of its first half and of its second half, for lane l.
template <class T, int N = Vector<T>::size>
struct WideHead {
  float first[N];
  float second[N];

  __device__ __forceinline__ void read(const T* row, int half) {
    const auto low = Vector<T>::load(row), high = Vector<T>::load(row + half);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] = to_float(low.values[i]);
      second[i] = to_float(high.values[i]);
    }
  }

  __device__ __forceinline__ void write(T* row, int half) const {
    Vector<T> low, high;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      low.values[i] = from_float<T>(first[i]);
      high.values[i] = from_float<T>(second[i]);
    }
    low.store(row);
    high.store(row + half);
  }

  __device__ __forceinline__ float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += first[i] * first[i] + second[i] * second[i];
    return sum;
  }

  __device__ __forceinline__ void scale(float factor, const T* weight, float offset, int half) {
    const auto low = Vector<T>::load(weight), high = Vector<T>::load(weight + half);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] *= factor * (offset + to_float(low.values[i]));
      second[i] *= factor * (offset + to_float(high.values[i]));
    }
  }

  // `table` is [cosines | sines], at this lane's first pair.
  __device__ __forceinline__ void rotate(const float* table, int half) {
    constexpr int kFloats = Vector<float>::size;
#pragma unroll
    for (int i = 0; i < N; i += kFloats) {
      const auto cosines = Vector<float>::load(table + i), sines = Vector<float>::load(table + half + i);
#pragma unroll
      for (int j = 0; j < kFloats; ++j) {
        const float x = first[i + j], y = second[i + j];
        first[i + j] = x * cosines.values[j] - y * sines.values[j];
        second[i + j] = y * cosines.values[j] + x * sines.values[j];
      }
    }
  }

  // The largest magnitude; infinity if a value is not finite.
  __device__ __forceinline__ float largest() const {
    float result = 0.0f;
    bool is_finite = true;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      result = fmaxf(result, fmaxf(fabsf(first[i]), fabsf(second[i])));
      is_finite = is_finite && isfinite(first[i]) && isfinite(second[i]);
    }
    return is_finite ? result : __builtin_huge_valf();
  }

  __device__ __forceinline__ void write_codes(uint8_t* row, int half, CodeScale scale, CodeType type) const {
    Vector<uint8_t, N> low, high;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      low.values[i] = scale.inverse == 0.0f ? 0 : nearest_code(__fmul_rn(first[i], scale.inverse), type);
      high.values[i] = scale.inverse == 0.0f ? 0 : nearest_code(__fmul_rn(second[i], scale.inverse), type);
    }
    low.store(row);
    high.store(row + half);
  }
};

// Reduces over groups of adjacent lanes, a power of two; the whole warp must call it.
template <class Operation>
__device__ __forceinline__ float reduce_lanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = Operation::combine(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// Processes the heads of all tokens, 2^log2_lanes threads each.
template <class T, bool kIsQuantized>
__device__ __forceinline__ void qkv_epilogue_wide(const ProjectedHeads& call) {
  const int lanes = 1 << call.log2_lanes;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t heads = static_cast<uint32_t>(call.num_heads + 2 * call.num_kv_heads);
  const uint32_t index = thread >> call.log2_lanes;
  const int64_t token = index / heads;
  const int head_index = static_cast<int>(index % heads);
  const bool is_query = head_index < call.num_heads;
  const bool is_key = !is_query && head_index < call.num_heads + call.num_kv_heads;
  const int head = is_query ? head_index : head_index - call.num_heads - (is_key ? 0 : call.num_kv_heads);
  const int lane = static_cast<int>(thread) & (lanes - 1);
  const int half = call.head_dim / 2, begin = lane * Vector<T>::size;

  // Lanes without a head must still take part in the warp shuffles.
  const bool is_valid = token < call.num_tokens;
  WideHead<T> row{};
  int64_t slot = 0;
  if (is_valid) {
    const void* source = is_query ? call.projected_q : is_key ? call.k : call.v;
    const int64_t stride = is_query ? call.q_stride : call.kv_stride;
    row.read(static_cast<const T*>(source) + token * stride + head * call.head_dim + begin, half);
    slot = is_query ? 0 : call.slot_mapping[token];
  }
  if (call.q_norm != nullptr || call.k_norm != nullptr) {
    const float squares = reduce_lanes<Sum>(row.squares(), lanes);
    const void* norm = is_query ? call.q_norm : is_key ? call.k_norm : nullptr;
    if (norm != nullptr) {
      const float inverse = rsqrtf(squares / static_cast<float>(call.head_dim) + call.eps);
      row.scale(inverse, static_cast<const T*>(norm) + begin, call.weight_offset, half);
    }
  }
  if (is_valid && (is_query || is_key)) {
    row.rotate(call.rope_table + token * call.head_dim + begin, half);
  }
  CodeScale scale{};
  if constexpr (kIsQuantized) {
    scale = code_scale(reduce_lanes<Max>(row.largest(), lanes), static_cast<CodeType>(call.code_type));
  }
  if (!is_valid || slot < 0) {
    return;
  }
  if (is_query) {
    row.write(static_cast<T*>(call.q) + (token * call.num_heads + head) * call.head_dim + begin, half);
    return;
  }
  const int64_t row_index = row_of_slot(slot, head, call.num_kv_heads, call.block_size);
  void* cache = is_key ? call.k_cache : call.v_cache;
  if constexpr (kIsQuantized) {
    uint8_t* codes = static_cast<uint8_t*>(cache) + row_index * call.head_dim + begin;
    row.write_codes(codes, half, scale, static_cast<CodeType>(call.code_type));
    if (lane == 0) {
      (is_key ? call.k_scale : call.v_scale)[row_index] = scale.scale;
    }
  } else {
    row.write(static_cast<T*>(cache) + row_index * call.head_dim + begin, half);
  }
}

}  // namespace aether
