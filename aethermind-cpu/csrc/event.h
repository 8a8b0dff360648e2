// An event: a mark in a stream.
#ifndef AETHER_CPU_EVENT_H
#define AETHER_CPU_EVENT_H

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "stream.h"

namespace aether::cpu {

// The mark is a position in the stream's count of finished tasks; recording again moves it. Safe from any thread.
class Event : public std::enable_shared_from_this<Event> {
 public:
  // Sets the mark behind everything submitted to `stream` so far.
  void record(Stream& stream);

  // Whether the mark has been reached; true for an event that was never recorded.
  bool query() const;

  // Returns when the mark has been reached.
  void synchronize() const;

  // Makes later work of `stream` wait for the current mark (cudaStreamWaitEvent).
  void make_wait(Stream& stream) const;

  // When the latest mark was reached, in nanoseconds of a steady clock, or nothing if it has not been.
  std::optional<int64_t> reached_at_ns() const;

  // Called by the stream at the mark of `record` call number `generation`.
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
