// A team of worker threads that run one function together (SPMD), each with its own number.
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

// The calling thread is worker 0; the others are threads of the team, which sleep after some idle time. One run at a
// time: only the holder of the lock from `acquire` may run. Streams of one backend share a team and alternate.
class Team {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Body = void (*)(void* context, const am_team& view);

  // `cpu_sets` has one set for each worker, or is empty. So has `nodes` a NUMA node: workers claim tickets from those
  // of their node alone (see `claim_of`), and workers of a node have consecutive numbers. Throws std::system_error when
  // threads cannot be started, std::invalid_argument when `num_workers` < 1 or for lists of another length.
  explicit Team(int num_workers, std::vector<CpuSet> cpu_sets = {}, std::vector<int> nodes = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_workers() const noexcept { return num_workers_.load(std::memory_order_relaxed); }

  // Waits for the run in progress, then changes the number of workers, their CPU sets and nodes. Throws like the
  // constructor, and then leaves one worker.
  void set_num_workers(int num_workers, std::vector<CpuSet> cpu_sets = {}, std::vector<int> nodes = {});

  // Pins the calling thread, which is going to call `run` repeatedly, to the CPU set of worker 0. `pinned` belongs to
  // the thread, 0 at first: it identifies the CPU sets that the thread was pinned by.
  void pin_caller(uint64_t& pinned);

  // Waits for the run in progress and reserves the team.
  Lock acquire() { return Lock(mutex_); }

  // Gives every worker at least `nbytes` of scratch. Throws std::bad_alloc.
  void reserve_scratch(const Lock& held, size_t nbytes);

  // Calls `body(context, view)` once on every worker and returns when all have returned. Allocates nothing.
  void run(const Lock& held, Body body, void* context) noexcept;

  // For use inside a body, by every worker: returns when all have arrived.
  void barrier() noexcept;

  // A barrier that also restarts tickets from 0.
  void next_step() noexcept;

 private:
  struct alignas(kCacheLineBytes) Worker {
    am_team view{};
    Block scratch;
    std::thread thread;
    int group = 0;
  };

  // The workers of a NUMA node, `num_workers` from number `first` on, and the number of tickets that they have claimed.
  struct alignas(kCacheLineBytes) Group {
    int64_t first = 0;
    int64_t num_workers = 0;
    std::atomic<int64_t> num_claimed{0};
  };

  void start(int num_workers, std::vector<CpuSet> cpu_sets, std::vector<int> nodes);
  void form_groups();
  void restart_tickets() noexcept;
  void stop() noexcept;
  void serve_runs(const am_team& view, uint64_t num_runs_before) noexcept;
  template <typename LastAction>
  void arrive_and_wait(LastAction last_action) noexcept;

  static void barrier_of(const am_team* view) noexcept;
  static int64_t claim_of(const am_team* view) noexcept;
  static void* scratch_of(const am_team* view, int32_t worker) noexcept;

  std::mutex mutex_;
  std::vector<Worker> workers_;
  std::vector<CpuSet> cpu_sets_;
  std::vector<int> nodes_;
  std::vector<Group> groups_;
  std::atomic<uint64_t> num_starts_{0};
  std::atomic<int> num_workers_{0};
  size_t scratch_bytes_ = 0;
  SpinPolicy barrier_policy_{};
  SpinPolicy idle_policy_{};

  Body body_ = nullptr;
  void* context_ = nullptr;
  bool is_stopping_ = false;

  // Each on its own cache line: they are written by different workers at different times.
  alignas(kCacheLineBytes) WaitCounter num_runs_;
  alignas(kCacheLineBytes) WaitCounter phase_;
  alignas(kCacheLineBytes) std::atomic<int32_t> num_arrived_{0};
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_PARALLEL_H
