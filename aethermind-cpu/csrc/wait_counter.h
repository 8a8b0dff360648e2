// A counter that threads can wait for: monotonic, with a spin-then-futex wait.
#ifndef AETHER_CPU_WAIT_COUNTER_H
#define AETHER_CPU_WAIT_COUNTER_H

#include <atomic>
#include <cstdint>

namespace aether::cpu {

// How long a waiting thread spins, then yields its core, before it sleeps. Spinning reacts fastest; yielding keeps a
// machine with more threads than cores making progress.
struct SpinPolicy {
  int num_pauses;
  int num_yields;
};

// Safe from any thread. Everything written before `advance` is visible to a thread that has seen the new value.
class WaitCounter {
 public:
  uint64_t value() const noexcept { return value_.load(std::memory_order_acquire); }

  // Adds one and wakes sleeping threads; no system call when there are none.
  void advance() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) != 0) wake_all();
  }

  // Returns when the value is at least `target`.
  void wait_until(uint64_t target, SpinPolicy policy) noexcept {
    if (value() < target) spin_then_sleep(target, policy);
  }

 private:
  void spin_then_sleep(uint64_t target, SpinPolicy policy) noexcept;
  void sleep_unless_changed(uint64_t seen) noexcept;
  void wake_all() noexcept;

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> num_sleeping_{0};
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_WAIT_COUNTER_H
