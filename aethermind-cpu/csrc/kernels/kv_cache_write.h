// Writes keys and values of a step to their slots of the paged cache [N, K, P, C]; tokens with a negative slot are
// skipped. A quantised cache holds 8-bit codes and one scale per head of a token (kv_quantization.h).
#pragma once

#include <cstring>

#include "kernels/kv_quantization.h"
#include "kernels/team.h"

namespace aether::cpu::AETHER_ISA {

// Addresses of a slot's rows: elements from the start of the cache to head 0, and from one head to the next.
struct CacheLayout {
  int64_t num_heads, block_size, head_dim;

  explicit CacheLayout(const am_tensor& cache)
      : num_heads(cache.shape[1]), block_size(cache.shape[2]), head_dim(cache.shape[3]) {}

  int64_t head_stride() const { return block_size * head_dim; }
  int64_t block_stride() const { return num_heads * head_stride(); }
  int64_t offset(int64_t slot) const { return slot / block_size * block_stride() + slot % block_size * head_dim; }
};

// The two caches of a layer, outputs of a kernel: keys (kv = 0), then values (kv = 1).
template <class T>
struct FloatCache {
  CacheLayout layout;
  T* caches[2];

  FloatCache(const am_tensor* out) : layout(out[0]), caches{data<T>(out[0]), data<T>(out[1])} {}

  template <class V>
  AETHER_INLINE void write(int kv, int64_t slot, int64_t head, const V* values) const {
    T* target = caches[kv] + layout.offset(slot) + head * layout.head_stride();
    for (int64_t i = 0; i < layout.head_dim; i += kLanes) {
      const int64_t n = smaller(layout.head_dim - i, kLanes);
      store(target + i, load(values + i, n), n);
    }
  }
};

// Quantised caches of a layer; their scales are the next two outputs.
struct QuantizedCache {
  CacheLayout layout;
  int32_t dtype;
  Code* caches[2];
  float* scales[2];

  QuantizedCache(const am_tensor* out)
      : layout(out[0]),
        dtype(out[0].dtype),
        caches{data<Code>(out[0]), data<Code>(out[1])},
        scales{data<float>(out[2]), data<float>(out[3])} {}

  template <class V>
  AETHER_INLINE void write(int kv, int64_t slot, int64_t head, const V* values) const {
    const int64_t offset = layout.offset(slot) + head * layout.head_stride();
    scales[kv][offset / layout.head_dim] = quantize_row(dtype, values, layout.head_dim, caches[kv] + offset);
  }
};

template <class T>
void kv_cache_write_quantized(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const int64_t* slots = data<const int64_t>(in[2]);
  const QuantizedCache cache(out);
  const Range tokens = share(team, in[0].shape[0]);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    if (slots[t] < 0) continue;
    for (int64_t h = 0; h < cache.layout.num_heads; ++h) {
      const int64_t source = (t * cache.layout.num_heads + h) * cache.layout.head_dim;
      for (int kv = 0; kv < 2; ++kv) cache.write(kv, slots[t], h, data<const T>(in[kv]) + source);
    }
  }
}

// Copies rows of a step, one for each cache, to their slots.
template <class T, int kCaches>
AETHER_INLINE void copy_to_slots(const am_tensor* in, const am_tensor* out, const am_team* team) {
  const int64_t* slots = data<const int64_t>(in[kCaches]);
  const CacheLayout cache(out[0]);
  const size_t bytes = static_cast<size_t>(cache.head_dim) * sizeof(T);
  const Range tokens = share(team, in[0].shape[0]);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    if (slots[t] < 0) continue;
    for (int64_t h = 0; h < cache.num_heads; ++h) {
      const int64_t source = (t * cache.num_heads + h) * cache.head_dim;
      const int64_t target = cache.offset(slots[t]) + h * cache.head_stride();
      for (int i = 0; i < kCaches; ++i) std::memcpy(data<T>(out[i]) + target, data<const T>(in[i]) + source, bytes);
    }
  }
}

template <class T>
void kv_cache_write(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_to_slots<T, 2>(in, out, team);
}

template <class T>
void latent_cache_write(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_to_slots<T, 1>(in, out, team);
}

}  // namespace aether::cpu::AETHER_ISA
