// An event: a position in a stream that hosts and other streams can wait for, like a CUDA event.
#ifndef AETHER_CPU_EVENT_H
#define AETHER_CPU_EVENT_H

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "stream.h"

namespace aether::cpu {

// Stores the number of tasks that the stream must have finished; recording again replaces it. Thread-safe.
class Event : public std::enable_shared_from_this<Event> {
 public:
  // Records the event after all work submitted to `stream` so far (cudaEventRecord).
  void record(Stream& stream);

  // Whether the recorded work has finished; true for an event that was never recorded (cudaEventQuery).
  bool query() const;

  // Blocks until the recorded work has finished (cudaEventSynchronize).
  void synchronize() const;

  // Makes later work of `stream` wait for the latest recording (cudaStreamWaitEvent).
  void make_wait(Stream& stream) const;

  // The time at which the latest recording completed, in nanoseconds of the monotonic clock; nullopt before that.
  std::optional<int64_t> reached_at_ns() const;

  // Called by the stream when the recording of the `generation`-th call of `record` completes.
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
