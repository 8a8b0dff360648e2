// An ordered queue of work with its own thread.
#ifndef AETHER_CPU_STREAM_H
#define AETHER_CPU_STREAM_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

#include "native_plan.h"
#include "wait_counter.h"

namespace aether::cpu {

class Event;

// A waiting host thread competes with the workers for cores, so it sleeps soon.
inline constexpr SpinPolicy kHostSpin{.num_pauses = 50, .num_yields = 20};

// How many tasks of a stream have finished. Shared with events, which outlive streams.
using Progress = std::shared_ptr<WaitCounter>;

struct PlanTask {
  std::shared_ptr<NativePlan> plan;
  Symbols symbols;
  size_t begin, end;
  int64_t* timestamps_ns = nullptr;  // see NativePlan::run
};

struct CopyTask {
  uintptr_t destination, source;
  size_t nbytes;
};

struct FillTask {
  uintptr_t destination;
  size_t nbytes;
  int byte;
};

struct RecordTask {
  std::shared_ptr<Event> event;
  uint64_t generation;
};

struct WaitTask {
  Progress progress;
  uint64_t target;
};

struct StopTask {};

using Task = std::variant<std::monostate, PlanTask, CopyTask, FillTask, RecordTask, WaitTask, StopTask>;

// Safe from any thread. Submitting costs a lock and at most one wake-up, allocates nothing, and blocks only while
// kCapacity tasks are queued (backpressure). Memory named by a task belongs to the caller and must live until the task
// has finished.
class Stream {
 public:
  static constexpr size_t kCapacity = 256;

  // The team is shared with the other streams of a backend. Throws std::system_error when no thread can be started.
  explicit Stream(std::shared_ptr<Team> team);

  // Finishes all submitted tasks.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Appends a task and returns its number, counted from 1.
  uint64_t submit(Task task) noexcept;

  bool query() const noexcept { return progress_->value() >= num_submitted_.value(); }

  // Waits for everything submitted before the call. Throws std::runtime_error once when a task has failed since the
  // last call.
  void synchronize();

  const Progress& progress() const noexcept { return progress_; }
  Team& team() const noexcept { return *team_; }

 private:
  void work() noexcept;
  void execute(Task& task);
  void remember_failure(const char* what) noexcept;

  std::shared_ptr<Team> team_;
  uint64_t pinned_ = 0;
  std::array<Task, kCapacity> tasks_;
  std::mutex submit_mutex_;
  WaitCounter num_submitted_;
  Progress progress_ = std::make_shared<WaitCounter>();
  std::mutex failure_mutex_;
  std::string failure_;
  std::thread thread_;
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_STREAM_H
