// Packed layout of dense weights: panels of sixteen output columns. Kernels of all instruction sets read a panel from
// front to back.
//
//   float32   [ceil(N / 16)][K][16]
//   bfloat16  [ceil(N / 16)][ceil(K / 2)][16][2]
//   float16   [ceil(N / 16)][ceil(K / 2)][2][16]
//
// 16-bit types hold pairs of neighbours in K: bfloat16 as the operand of a two-way dot product, float16 as sixteen
// columns side by side, which a conversion widens.
//
// A panel is therefore a sequence of 64-byte steps. Columns past N and the odd element past K are zero.
#pragma once

#include <cstdint>

#include "kernels/registry.h"

namespace aether::cpu {

inline constexpr int64_t kPanelColumns = 16;
inline constexpr int64_t kStepBytes = 64;

extern const PackEntry kPanelsFloat32;
extern const PackEntry kPanelsBFloat16;
extern const PackEntry kPanelsFloat16;

}  // namespace aether::cpu
