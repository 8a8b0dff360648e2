// A float16 (IEEE binary16) value in memory. It has no functions, so that all translation units can share the type.
#pragma once

#include <cstdint>

namespace aether::cpu {

struct Float16 {
  uint16_t bits;
};

}  // namespace aether::cpu
