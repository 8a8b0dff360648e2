// The steady clock of events and step times.
#ifndef AETHER_CPU_CLOCK_H
#define AETHER_CPU_CLOCK_H

#include <chrono>
#include <cstdint>

namespace aether::cpu {

inline int64_t now_ns() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace aether::cpu

#endif  // AETHER_CPU_CLOCK_H
