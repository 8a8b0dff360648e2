// A number that only grows, and that threads can wait for.
#ifndef AETHER_CPU_WAIT_COUNTER_H
#define AETHER_CPU_WAIT_COUNTER_H

#include <atomic>
#include <cstdint>

namespace aether::cpu {

// How long a thread stays awake for something: first spinning, then lending its core to whoever wants it. Then it
// sleeps. Spinning is the quickest to notice; lending keeps a machine with more threads than cores from standing still.
struct Patience {
  int num_pauses;
  int num_yields;
};

// Safe from any thread. Everything written before `advance` is visible to a thread that has seen the new value.
class WaitCounter {
 public:
  uint64_t value() const noexcept { return value_.load(std::memory_order_acquire); }

  // Adds one and wakes who sleeps; no system call while nobody does.
  void advance() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) != 0) wake_all();
  }

  // Returns when the value is at least `target`.
  void wait_until(uint64_t target, Patience patience) noexcept {
    if (value() < target) wait_awake_then_asleep(target, patience);
  }

 private:
  void wait_awake_then_asleep(uint64_t target, Patience patience) noexcept;
  void sleep_unless_changed(uint64_t seen) noexcept;
  void wake_all() noexcept;

  std::atomic<uint64_t> value_{0};
  std::atomic<uint32_t> num_sleeping_{0};
};

}  // namespace aether::cpu

#endif  // AETHER_CPU_WAIT_COUNTER_H
