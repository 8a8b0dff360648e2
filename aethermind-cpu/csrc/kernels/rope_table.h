// [cos(p f) scale | sin(p f) scale], the angle p f rounded to float32; beyond 2^24, where float32 lacks positions, in
// float64.
#pragma once

#include <math.h>

#include "kernels/team.h"
#include "kernels/tensor.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int64_t kLastAsTrained = int64_t{1} << 24;

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
    if (positions[t] >= -kLastAsTrained && positions[t] <= kLastAsTrained) {
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
