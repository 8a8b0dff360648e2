#include "parallel.h"

#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace aether::cpu {
namespace {

// Workers usually reach a barrier within a microsecond of each other, so they spin first. Then they yield instead: the
// worker they wait for may be queued on the same core, where every pause delays it. Between two runs the host takes
// some tens of microseconds.
constexpr SpinPolicy kBarrierSpin{.num_pauses = 50, .num_yields = 500};
constexpr SpinPolicy kIdleSpin{.num_pauses = 50, .num_yields = 300};
// With more workers than cores, a spinning worker takes a core from one with work to do.
constexpr SpinPolicy kOversubscribedSpin{.num_pauses = 20, .num_yields = 20};

void require_team(int num_workers, const std::vector<CpuSet>& cpu_sets) {
  if (num_workers < 1)
    throw std::invalid_argument("a team needs at least one worker, not " + std::to_string(num_workers));
  if (!cpu_sets.empty() && cpu_sets.size() != static_cast<size_t>(num_workers))
    throw std::invalid_argument("a team of " + std::to_string(num_workers) + " workers needs as many CPU sets, not " +
                                std::to_string(cpu_sets.size()));
}

}  // namespace

Team::Team(int num_workers, std::vector<CpuSet> cpu_sets) {
  require_team(num_workers, cpu_sets);
  start(num_workers, std::move(cpu_sets));
}

Team::~Team() {
  const Lock held = acquire();
  stop();
}

void Team::set_num_workers(int num_workers, std::vector<CpuSet> cpu_sets) {
  require_team(num_workers, cpu_sets);
  const Lock held = acquire();
  if (num_workers == this->num_workers() && cpu_sets == cpu_sets_) return;
  stop();
  start(num_workers, std::move(cpu_sets));
}

void Team::pin_caller(uint64_t& pinned) {
  if (pinned == num_starts_.load(std::memory_order_acquire)) return;
  const Lock held = acquire();
  if (!cpu_sets_.empty()) cpu_sets_[0].pin(pthread_self());
  pinned = num_starts_.load(std::memory_order_relaxed);
}

void Team::start(int num_workers, std::vector<CpuSet> cpu_sets) {
  const bool is_oversubscribed = num_workers > static_cast<int>(std::thread::hardware_concurrency());
  barrier_policy_ = is_oversubscribed ? kOversubscribedSpin : kBarrierSpin;
  idle_policy_ = is_oversubscribed ? kOversubscribedSpin : kIdleSpin;
  is_stopping_ = false;
  workers_ = std::vector<Worker>(num_workers);
  cpu_sets_ = std::move(cpu_sets);
  num_starts_.fetch_add(1, std::memory_order_release);
  num_workers_.store(num_workers, std::memory_order_relaxed);
  const uint64_t num_runs_before = num_runs_.value();
  for (int index = 0; index < num_workers; ++index) {
    Worker& worker = workers_[index];
    worker.scratch.reserve(scratch_bytes_);
    worker.view = {.worker = index,
                   .num_workers = num_workers,
                   .scratch = worker.scratch.address(),
                   .shared = this,
                   .barrier = &Team::barrier_of,
                   .claim = &Team::claim_of,
                   .scratch_of = &Team::scratch_of};
  }
  try {
    for (int index = 1; index < num_workers; ++index) {
      const am_team& view = workers_[index].view;
      workers_[index].thread = std::thread([this, &view, num_runs_before] { serve_runs(view, num_runs_before); });
      if (!cpu_sets_.empty()) cpu_sets_[index].pin(workers_[index].thread.native_handle());
    }
  } catch (...) {
    stop();
    start(1, {});
    throw;
  }
}

void Team::stop() noexcept {
  is_stopping_ = true;
  num_runs_.advance();
  for (Worker& worker : workers_) {
    if (worker.thread.joinable()) worker.thread.join();
  }
}

void Team::reserve_scratch([[maybe_unused]] const Lock& held, size_t nbytes) {
  assert(held.owns_lock());
  if (nbytes <= scratch_bytes_) return;
  for (Worker& worker : workers_) {
    worker.scratch.reserve(nbytes);
    worker.view.scratch = worker.scratch.address();
  }
  scratch_bytes_ = nbytes;
}

void Team::run([[maybe_unused]] const Lock& held, Body body, void* context) noexcept {
  assert(held.owns_lock());
  next_ticket_.store(0, std::memory_order_relaxed);
  body_ = body;
  context_ = context;
  if (num_workers() > 1) num_runs_.advance();
  body(context, workers_[0].view);
  barrier();
}

void Team::serve_runs(const am_team& view, uint64_t num_runs_before) noexcept {
  for (uint64_t run = num_runs_before + 1;; ++run) {
    num_runs_.wait_until(run, idle_policy_);
    if (is_stopping_) return;
    body_(context_, view);
    barrier();
  }
}

template <typename LastAction>
void Team::arrive_and_wait(LastAction last_action) noexcept {
  const uint64_t phase = phase_.value();
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_workers()) {
    num_arrived_.store(0, std::memory_order_relaxed);
    last_action();
    phase_.advance();
  } else {
    phase_.wait_until(phase + 1, barrier_policy_);
  }
}

void Team::barrier() noexcept {
  arrive_and_wait([] {});
}

void Team::next_step() noexcept {
  arrive_and_wait([this] { next_ticket_.store(0, std::memory_order_relaxed); });
}

void Team::barrier_of(const am_team* view) noexcept { static_cast<Team*>(view->shared)->barrier(); }

int64_t Team::claim_of(const am_team* view) noexcept {
  return static_cast<Team*>(view->shared)->next_ticket_.fetch_add(1, std::memory_order_relaxed);
}

void* Team::scratch_of(const am_team* view, int32_t worker) noexcept {
  return static_cast<Team*>(view->shared)->workers_[worker].view.scratch;
}

}  // namespace aether::cpu
