// Input of an attention block: projects to queries, keys and values, adds biases, normalises and rotates heads (RoPE),
// and writes keys and values to the cache.
//
// An item of columns is a head. A head's columns may begin anywhere in its weight's panels, so an item is every panel
// that the head overlaps; with a head_dim that is a multiple of 16 these are exactly its own. Results are rounded once,
// at the end.
#pragma once

#include "kernels/dense_weight.h"
#include "kernels/kv_cache_write.h"
#include "kernels/norms.h"
#include "kernels/rope.h"

namespace aether::cpu::AETHER_ISA {

// One of the three projections.
template <class T, class W>
struct Projection {
  W weight;
  const T* bias;
  const T* norm;
  bool is_rotated;
};

AETHER_INLINE int64_t panels_per_head(int64_t head_dim) {
  return head_dim % kPanelColumns == 0 ? head_dim / kPanelColumns : ceil_div(head_dim - 1, kPanelColumns) + 1;
}

// Bias, norm and rotation of one head of one token, in place; `table` has `rotary_dim` cosines and sines.
template <class T, class W>
AETHER_INLINE void finish_head(float* head, const Projection<T, W>& projection, const T* bias, const float* table,
                               int64_t head_dim, int64_t rotary_dim, float eps, float weight_offset) {
  if (bias) {
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      const int64_t n = smaller(head_dim - i, kLanes);
      store(head + i, load(head + i, n) + load(bias + i, n), n);
    }
  }
  if (projection.norm)
    scale_row(head, projection.norm, head_dim, inverse_rms(head, head_dim, eps), weight_offset, head);
  if (projection.is_rotated) rotate_halves(head, table, rotary_dim, head);
}

template <class T, class W, class Cache>
AETHER_INLINE void project_to_cache(const am_tensor* in, const am_tensor* out, const am_attr* attrs,
                                    const am_team* team) {
  const int64_t head_dim = in[11].shape[3], rotary_dim = in[9].shape[1], item_panels = panels_per_head(head_dim);
  const int64_t num_heads = attrs[0].i, num_kv_heads = attrs[1].i;
  const float eps = static_cast<float>(attrs[2].f), weight_offset = static_cast<float>(attrs[3].f);
  const float* tables = data<const float>(in[9]);
  const int64_t* slots = data<const int64_t>(in[10]);
  const Cache cache(out + 1);
  const Projection<T, W> projections[3] = {
      {W(in[1]), data<const T>(in[4]), data<const T>(in[7]), true},
      {W(in[2]), data<const T>(in[5]), data<const T>(in[8]), true},
      {W(in[3]), data<const T>(in[6]), nullptr, false},
  };
  // Items number the heads of the three projections consecutively: the projection of an item, and its head.
  const auto projection_of = [&](int64_t item) {
    return item < num_heads ? 0 : item < num_heads + num_kv_heads ? 1 : 2;
  };
  const auto head_of = [&](int64_t item) { return item < num_heads ? item : (item - num_heads) % num_kv_heads; };
  const int64_t last_panel[2] = {ceil_div(num_heads * head_dim, kPanelColumns) - 1,
                                 ceil_div(num_kv_heads * head_dim, kPanelColumns) - 1};

  projections[0].weight.for_each_block(
      data<const T>(in[0]), in[0].shape[0], num_heads + 2 * num_kv_heads, item_panels, team,
      [&](int64_t item_begin, int64_t, int64_t p) {
        const int64_t item = item_begin + p / item_panels;
        const int64_t panel = head_of(item) * head_dim / kPanelColumns + p % item_panels;
        const int64_t last = last_panel[item < num_heads ? 0 : 1];
        return projections[projection_of(item)].weight.panel(smaller(panel, last));
      },
      [&](int64_t row_begin, int64_t rows, int64_t item_begin, int64_t items, float* c, int64_t stride) {
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t t = row_begin + r;
          for (int64_t i = 0; i < items; ++i) {
            const int64_t head = head_of(item_begin + i);
            const int projection = projection_of(item_begin + i);
            const T* bias = projections[projection].bias;
            float* values = c + r * stride + i * item_panels * kPanelColumns + head * head_dim % kPanelColumns;
            finish_head(values, projections[projection], bias ? bias + head * head_dim : nullptr,
                        tables + t * rotary_dim, head_dim, rotary_dim, eps, weight_offset);
            if (projection > 0) {
              if (slots[t] >= 0) cache.write(projection - 1, slots[t], head, values);
              continue;
            }
            T* target = data<T>(out[0]) + (t * num_heads + head) * head_dim;
            for (int64_t j = 0; j < head_dim; j += kLanes) {
              const int64_t n = smaller(head_dim - j, kLanes);
              store(target + j, load(values + j, n), n);
            }
          }
        }
      });
}

template <class T, class W = DenseWeight<T>>
void qkv_rope_cache_write(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  project_to_cache<T, W, FloatCache<T>>(in, out, attrs, team);
}

template <class T, class W = DenseWeight<T>>
void qkv_rope_cache_write_quantized(const am_tensor* in, const am_tensor* out, const am_attr* attrs,
                                    const am_team* team) {
  project_to_cache<T, W, QuantizedCache>(in, out, attrs, team);
}

template <class T, class W = DenseWeight<T>>
size_t qkv_rope_cache_write_scratch(const am_tensor* in, const am_tensor*, const am_attr*, int32_t num_workers) {
  return W::scratch_bytes(in[0].shape[0], in[0].shape[1], panels_per_head(in[11].shape[3]), num_workers);
}

}  // namespace aether::cpu::AETHER_ISA
