// A mark in a stream.
#ifndef AETHER_CPU_EVENT_H
#define AETHER_CPU_EVENT_H

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "stream.h"

namespace aether::cpu {

// A mark is a place in a stream's count of finished tasks; recording again moves it. Safe from any thread.
class Event : public std::enable_shared_from_this<Event> {
 public:
  // Puts the mark behind everything submitted to `stream` so far.
  void record(Stream& stream);

  // Whether the mark has been reached; an event that was never recorded has.
  bool query() const;

  // Returns when the mark has been reached.
  void synchronize() const;

  // Lets later work of `stream` start only after the mark as it is now.
  void hold_up(Stream& stream) const;

  // When the latest mark was reached, in nanoseconds of a steady clock, or nothing if it has not been.
  std::optional<int64_t> reached_at_ns() const;

  // For the stream, when it arrives at the mark of `record` call number `generation`.
  void reached(uint64_t generation) noexcept;

 private:
  WaitTask mark() const;

  mutable std::mutex mutex_;
  uint64_t generation_ = 0;
  WaitTask mark_{};
  std::optional<int64_t> reached_at_ns_;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_EVENT_H
