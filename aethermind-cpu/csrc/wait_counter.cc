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

// Who lends a core to a thread that never sleeps, such as another program's, gets it back a slice of the scheduler
// later, thousands of barriers' time. Among threads that lend it too, and beside the host's, a turn is much shorter. A
// thread that lost a slice is wary for a while: it spins for about 40 µs, so that few waits end in sleep, and sleeps
// instead of lending, because the scheduler soon lets a thread run that has slept.
constexpr int64_t kLostNs = 2'000'000;
constexpr int kNumWaryWaits = 2000;
constexpr Patience kWaryPatience{.num_pauses = 2000, .num_yields = 0};
thread_local int num_wary_waits = 0;

#if defined(__linux__)
// The kernel compares 32 bits: the half of the value that changes with every step.
uint32_t* changing_half(std::atomic<uint64_t>& value) noexcept {
  return reinterpret_cast<uint32_t*>(&value) + (std::endian::native == std::endian::big ? 1 : 0);
}
#endif

}  // namespace

void WaitCounter::wait_awake_then_asleep(uint64_t target, Patience patience) noexcept {
  if (num_wary_waits > 0) {
    --num_wary_waits;
    patience = kWaryPatience;
  }
  for (int i = 0; i < patience.num_pauses; ++i) {
    pause_core();
    if (value() >= target) return;
  }
  for (int64_t i = 0, before_ns = now_ns(); i < patience.num_yields && num_wary_waits == 0; ++i) {
    std::this_thread::yield();
    const int64_t after_ns = now_ns();
    if (after_ns - before_ns > kLostNs) num_wary_waits = kNumWaryWaits;
    before_ns = after_ns;
    if (value() >= target) return;
  }
  num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
  for (uint64_t seen; (seen = value_.load(std::memory_order_seq_cst)) < target;) sleep_unless_changed(seen);
  num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
}

#if defined(__linux__)

void WaitCounter::sleep_unless_changed(uint64_t seen) noexcept {
  syscall(SYS_futex, changing_half(value_), FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(seen), nullptr, nullptr, 0);
}

void WaitCounter::wake_all() noexcept {
  syscall(SYS_futex, changing_half(value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

#else

void WaitCounter::sleep_unless_changed(uint64_t seen) noexcept { value_.wait(seen, std::memory_order_seq_cst); }

void WaitCounter::wake_all() noexcept { value_.notify_all(); }

#endif

}  // namespace aether::cpu
