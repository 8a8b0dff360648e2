#include "wait_counter.h"

#include <bit>
#include <climits>
#include <thread>

#include "clock.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aether::cpu {
namespace {

void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// A yield to a thread that never sleeps, such as another process's, costs a whole time slice of the scheduler:
// thousands of barriers. After such a loss a thread spins longer for a while, so that few waits end in sleep, and
// sleeps instead of yielding, because the scheduler favours threads that wake up.
constexpr int64_t kLongYieldNs = 2'000'000;
constexpr int kNumContendedWaits = 2000;
constexpr SpinPolicy kContendedSpin{.num_pauses = 2000, .num_yields = 0};
thread_local int num_contended_waits = 0;

#if defined(__linux__)
// The kernel compares 32 bits: the half of the value that changes with every step.
uint32_t* futex_word(std::atomic<uint64_t>& value) noexcept {
  return reinterpret_cast<uint32_t*>(&value) + (std::endian::native == std::endian::big ? 1 : 0);
}
#endif

}  // namespace

void WaitCounter::spin_then_sleep(uint64_t target, SpinPolicy policy) noexcept {
  if (num_contended_waits > 0) {
    --num_contended_waits;
    policy = kContendedSpin;
  }
  for (int i = 0; i < policy.num_pauses; ++i) {
    pause_core();
    if (value() >= target) return;
  }
  for (int64_t i = 0, before_ns = now_ns(); i < policy.num_yields && num_contended_waits == 0; ++i) {
    std::this_thread::yield();
    const int64_t after_ns = now_ns();
    if (after_ns - before_ns > kLongYieldNs) num_contended_waits = kNumContendedWaits;
    before_ns = after_ns;
    if (value() >= target) return;
  }
  num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
  for (uint64_t seen; (seen = value_.load(std::memory_order_seq_cst)) < target;) sleep_unless_changed(seen);
  num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
}

#if defined(__linux__)

void WaitCounter::sleep_unless_changed(uint64_t seen) noexcept {
  syscall(SYS_futex, futex_word(value_), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(seen), nullptr, nullptr, 0);
}

void WaitCounter::wake_all() noexcept {
  syscall(SYS_futex, futex_word(value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else

void WaitCounter::sleep_unless_changed(uint64_t seen) noexcept { value_.wait(seen, std::memory_order_seq_cst); }

void WaitCounter::wake_all() noexcept { value_.notify_all(); }

#endif

}  // namespace aether::cpu
