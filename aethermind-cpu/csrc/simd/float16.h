// A float16 (IEEE binary16) value as it lies in memory. It has no functions, so that every translation unit may share
// the type.
#pragma once

#include <cstdint>

namespace aether::cpu {

struct Float16 {
  uint16_t bits;
};

}  // namespace aether::cpu
