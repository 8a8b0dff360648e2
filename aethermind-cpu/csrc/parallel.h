// A team of workers that run one function together, each knowing its number.
#ifndef AETHER_CPU_PARALLEL_H
#define AETHER_CPU_PARALLEL_H

#include <aethermind/kernel_abi.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "affinity.h"
#include "allocator.h"
#include "wait_counter.h"

namespace aether::cpu {

// The calling thread is worker 0; the others are threads of the team, asleep when there has been nothing to do for a
// while. One run at a time: whoever holds the lock from `acquire` may run. Streams of one backend share a team and take
// turns.
class Team {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Body = void (*)(void* context, const am_team& view);

  // `places` has one for each worker, or none. Throws std::system_error when threads cannot be started,
  // std::invalid_argument when `num_workers` < 1 or when there is another number of places.
  explicit Team(int num_workers, std::vector<Place> places = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_workers() const noexcept { return num_workers_.load(std::memory_order_relaxed); }

  // Waits for the run in progress, then changes the number of workers, and where they run. Throws like the constructor,
  // and then leaves one worker.
  void set_num_workers(int num_workers, std::vector<Place> places = {});

  // Keeps the calling thread, which is going to call `run` again and again, in the place of worker 0. `settled` is its
  // own, 0 at first: which of the team's places it is in.
  void settle(uint64_t& settled);

  // Waits for the run in progress and reserves the team.
  Lock acquire() { return Lock(mutex_); }

  // Gives every worker at least `nbytes` of scratch. Throws std::bad_alloc.
  void reserve_scratch(const Lock& held, size_t nbytes);

  // Calls `body(context, view)` once on every worker and returns when all have returned. Allocates nothing.
  void run(const Lock& held, Body body, void* context) noexcept;

  // For use inside a body, by every worker: returns when all have arrived.
  void barrier() noexcept;

  // A barrier after which tickets start from 0 again.
  void next_step() noexcept;

 private:
  struct alignas(kCacheLineBytes) Worker {
    am_team view{};
    Block scratch;
    std::thread thread;
  };

  void start(int num_workers, std::vector<Place> places);
  void stop() noexcept;
  void help(const am_team& view, uint64_t num_runs_before) noexcept;
  template <typename LastAction>
  void meet(LastAction last_action) noexcept;

  static void barrier_of(const am_team* view) noexcept;
  static int64_t claim_of(const am_team* view) noexcept;
  static void* scratch_of(const am_team* view, int32_t worker) noexcept;

  std::mutex mutex_;
  std::vector<Worker> workers_;
  std::vector<Place> places_;
  std::atomic<uint64_t> num_starts_{0};
  std::atomic<int> num_workers_{0};
  size_t scratch_bytes_ = 0;
  Patience barrier_patience_{};
  Patience idle_patience_{};

  Body body_ = nullptr;
  void* context_ = nullptr;
  bool is_stopping_ = false;

  // Each on its own cache line: they are written by different workers at different times.
  alignas(kCacheLineBytes) WaitCounter num_runs_;
  alignas(kCacheLineBytes) WaitCounter phase_;
  alignas(kCacheLineBytes) std::atomic<int32_t> num_arrived_{0};
  alignas(kCacheLineBytes) std::atomic<int64_t> next_ticket_{0};
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_PARALLEL_H
