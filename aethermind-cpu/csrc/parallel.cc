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

void require_length(size_t length, int num_workers, const char* what) {
  if (length != 0 && length != static_cast<size_t>(num_workers))
    throw std::invalid_argument("a team of " + std::to_string(num_workers) + " workers needs as many " + what +
                                ", not " + std::to_string(length));
}

void require_team(int num_workers, const std::vector<CpuSet>& cpu_sets, const std::vector<int>& nodes) {
  if (num_workers < 1)
    throw std::invalid_argument("a team needs at least one worker, not " + std::to_string(num_workers));
  require_length(cpu_sets.size(), num_workers, "CPU sets");
  require_length(nodes.size(), num_workers, "nodes");
}

}  // namespace

Team::Team(int num_workers, std::vector<CpuSet> cpu_sets, std::vector<int> nodes) {
  require_team(num_workers, cpu_sets, nodes);
  start(num_workers, std::move(cpu_sets), std::move(nodes));
}

Team::~Team() {
  const Lock held = acquire();
  stop();
}

void Team::set_num_workers(int num_workers, std::vector<CpuSet> cpu_sets, std::vector<int> nodes) {
  require_team(num_workers, cpu_sets, nodes);
  const Lock held = acquire();
  if (num_workers == this->num_workers() && cpu_sets == cpu_sets_ && nodes == nodes_) return;
  stop();
  start(num_workers, std::move(cpu_sets), std::move(nodes));
}

void Team::pin_caller(uint64_t& pinned) {
  if (pinned == num_starts_.load(std::memory_order_acquire)) return;
  const Lock held = acquire();
  if (!cpu_sets_.empty()) cpu_sets_[0].pin(pthread_self());
  pinned = num_starts_.load(std::memory_order_relaxed);
}

void Team::start(int num_workers, std::vector<CpuSet> cpu_sets, std::vector<int> nodes) {
  const bool is_oversubscribed = num_workers > static_cast<int>(std::thread::hardware_concurrency());
  barrier_policy_ = is_oversubscribed ? kOversubscribedSpin : kBarrierSpin;
  idle_policy_ = is_oversubscribed ? kOversubscribedSpin : kIdleSpin;
  is_stopping_ = false;
  workers_ = std::vector<Worker>(num_workers);
  cpu_sets_ = std::move(cpu_sets);
  nodes_ = std::move(nodes);
  form_groups();
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
    start(1, {}, {});
    throw;
  }
}

// Consecutive workers of one node are a group; without nodes all workers are.
void Team::form_groups() {
  std::vector<int64_t> sizes;
  for (size_t index = 0; index < workers_.size(); ++index) {
    if (index == 0 || (!nodes_.empty() && nodes_[index] != nodes_[index - 1])) sizes.push_back(0);
    workers_[index].group = static_cast<int>(sizes.size()) - 1;
    ++sizes.back();
  }
  groups_ = std::vector<Group>(sizes.size());
  int64_t first = 0;
  for (size_t index = 0; index < sizes.size(); ++index) {
    groups_[index].first = first;
    groups_[index].num_workers = sizes[index];
    first += sizes[index];
  }
}

void Team::restart_tickets() noexcept {
  for (Group& group : groups_) group.num_claimed.store(0, std::memory_order_relaxed);
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
  restart_tickets();
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
  arrive_and_wait([this] { restart_tickets(); });
}

void Team::barrier_of(const am_team* view) noexcept { static_cast<Team*>(view->shared)->barrier(); }

// Ticket t belongs to the group of worker t % num_workers. Kernels that stream a weight give worker w and the tickets
// that are w modulo num_workers the same rows (`for_each_chunk`), so a node's workers read the rows in its memory
// alone.
int64_t Team::claim_of(const am_team* view) noexcept {
  Team* team = static_cast<Team*>(view->shared);
  Group& group = team->groups_[team->workers_[view->worker].group];
  const int64_t number = group.num_claimed.fetch_add(1, std::memory_order_relaxed);
  return number / group.num_workers * view->num_workers + group.first + number % group.num_workers;
}

void* Team::scratch_of(const am_team* view, int32_t worker) noexcept {
  return static_cast<Team*>(view->shared)->workers_[worker].view.scratch;
}

}  // namespace aether::cpu
