// Rotary position embedding: the table of cosines and sines, and the rotation of heads by it.
#pragma once

#include <math.h>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

// Rotates the pairs (i, i + R/2) of the first R elements of a head; `table` is [cos | sin] of R/2 angles. `x` and `out`
// may be the same.
template <class T, class O>
AETHER_INLINE void rotate_halves(const T* x, const float* table, int64_t rotary_dim, O* out) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = smaller(half - i, kLanes);
    const Vec cosine = load(table + i, n), sine = load(table + half + i, n);
    const Vec first = load(x + i, n), second = load(x + half + i, n);
    store(out + i, first * cosine - second * sine, n);
    store(out + half + i, second * cosine + first * sine, n);
  }
}

// Rotates sixteen of the pairs (2i, 2i + 1), which are taken apart and put together in arrays: compilers turn that into
// shuffles of each instruction set.
AETHER_INLINE void rotate_pairs(float* pairs, const Vec& cosine, const Vec& sine) {
  float first[kLanes], second[kLanes];
  for (int j = 0; j < kLanes; ++j) first[j] = pairs[2 * j], second[j] = pairs[2 * j + 1];
  const Vec a = load(first), b = load(second);
  store(first, a * cosine - b * sine);
  store(second, b * cosine + a * sine);
  for (int j = 0; j < kLanes; ++j) pairs[2 * j] = first[j], pairs[2 * j + 1] = second[j];
}

// Rotates the pairs (2i, 2i + 1) of the first R elements of a head.
template <class T>
AETHER_INLINE void rotate_interleaved(const T* x, const float* table, int64_t rotary_dim, T* out) {
  const int64_t half = rotary_dim / 2;
  float pairs[2 * kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    store(pairs, load(x + 2 * i));
    store(pairs + kLanes, load(x + 2 * i + kLanes));
    rotate_pairs(pairs, load(table + i), load(table + half + i));
    store(out + 2 * i, load(pairs));
    store(out + 2 * i + kLanes, load(pairs + kLanes));
  }
  if (i == half) return;
  const int64_t n = half - i, low = smaller(2 * n, kLanes), high = 2 * n - low;
  store(pairs, load(x + 2 * i, low));
  store(pairs + kLanes, load(x + 2 * i + low, high));
  rotate_pairs(pairs, load(table + i, n), load(table + half + i, n));
  store(out + 2 * i, load(pairs), low);
  store(out + 2 * i + low, load(pairs + kLanes), high);
}

template <class T>
void rope(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t num_heads = in[0].shape[1], head_dim = in[0].shape[2], rotary_dim = in[1].shape[1];
  const bool is_interleaved = attrs[0].i != 0;
  const Range tokens = share(team, in[0].shape[0]);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const float* table = data<const float>(in[1]) + t * rotary_dim;
    for (int64_t h = 0; h < num_heads; ++h) {
      const T* x = data<const T>(in[0]) + (t * num_heads + h) * head_dim;
      T* rotated = data<T>(out[0]) + (t * num_heads + h) * head_dim;
      if (is_interleaved) {
        rotate_interleaved(x, table, rotary_dim, rotated);
      } else {
        rotate_halves(x, table, rotary_dim, rotated);
      }
      if (x != rotated) {
        for (int64_t i = rotary_dim; i < head_dim; ++i) rotated[i] = x[i];
      }
    }
  }
}

// Positions beyond 2^24 are not exact in float32.
inline constexpr int64_t kMaxFloat32Position = int64_t{1} << 24;

// [cos(p f) scale | sin(p f) scale]. The angle p f is rounded to float32, as models were trained; float64 beyond 2^24.
inline void rope_table(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const int64_t* positions = data<const int64_t>(in[0]);
  const float* inv_freq = data<const float>(in[1]);
  const int64_t num_angles = in[1].shape[0];
  const float scale = static_cast<float>(attrs[0].f);
  const Range angles = share(team, in[0].shape[0] * num_angles);
  for (int64_t i = angles.begin; i < angles.end; ++i) {
    const int64_t t = i / num_angles, e = i % num_angles;
    float* row = data<float>(out[0]) + t * 2 * num_angles;
    float cosine, sine;
    if (positions[t] >= -kMaxFloat32Position && positions[t] <= kMaxFloat32Position) {
      const float angle = static_cast<float>(positions[t]) * inv_freq[e];
      cosine = ::cosf(angle), sine = ::sinf(angle);
    } else {
      const double angle = static_cast<double>(positions[t]) * static_cast<double>(inv_freq[e]);
      cosine = static_cast<float>(::cos(angle)), sine = static_cast<float>(::sin(angle));
    }
    row[e] = cosine * scale;
    row[num_angles + e] = sine * scale;
  }
}

}  // namespace aether::cpu::AETHER_ISA
