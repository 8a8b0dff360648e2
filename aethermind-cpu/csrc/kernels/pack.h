// How matrix weights are laid out: panels of sixteen output columns, so that a kernel of any ISA streams a panel from
// front to back.
//
//   float32   [ceil(N / 16)][K][16]
//   bfloat16  [ceil(N / 16)][ceil(K / 2)][16][2]    pairs of neighbours in K, the order of a two-way dot-product
//   instruction
//   float16   [ceil(N / 16)][ceil(K / 2)][2][16]    pairs as well, but each of the two in sixteen columns side by side:
//   a conversion takes neighbours, and there is no dot product of float16 pairs into float32 that wants them otherwise
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
