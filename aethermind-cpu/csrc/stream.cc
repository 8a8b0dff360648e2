#include "stream.h"

#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "event.h"

namespace aether::cpu {
namespace {

// The next task of a busy stream comes within tens of microseconds.
constexpr SpinPolicy kIdleSpin{.num_pauses = 50, .num_yields = 300};

}  // namespace

Stream::Stream(std::shared_ptr<Team> team) : team_(std::move(team)), thread_([this] { work(); }) {}

Stream::~Stream() {
  submit(StopTask{});
  thread_.join();
}

uint64_t Stream::submit(Task task) noexcept {
  const std::lock_guard lock(submit_mutex_);
  const uint64_t number = num_submitted_.value() + 1;
  if (number > kCapacity) progress_->wait_until(number - kCapacity, kHostSpin);
  tasks_[number % kCapacity] = std::move(task);
  num_submitted_.advance();
  return number;
}

void Stream::synchronize() {
  progress_->wait_until(num_submitted_.value(), kHostSpin);
  const std::lock_guard lock(failure_mutex_);
  if (!failure_.empty()) throw std::runtime_error(std::exchange(failure_, {}));
}

void Stream::work() noexcept {
  for (uint64_t number = 1;; ++number) {
    num_submitted_.wait_until(number, kIdleSpin);
    Task& task = tasks_[number % kCapacity];
    const bool is_last = std::holds_alternative<StopTask>(task);
    try {
      execute(task);
    } catch (const std::exception& error) {
      remember_failure(error.what());
    }
    task = std::monostate{};
    progress_->advance();
    if (is_last) return;
  }
}

void Stream::execute(Task& task) {
  if (auto* run = std::get_if<PlanTask>(&task)) {
    team_->pin_caller(pinned_);
    run->plan->run(*team_, run->symbols, run->begin, run->end, run->timestamps_ns);
  } else if (auto* copy = std::get_if<CopyTask>(&task)) {
    std::memmove(reinterpret_cast<void*>(copy->destination), reinterpret_cast<const void*>(copy->source), copy->nbytes);
  } else if (auto* fill = std::get_if<FillTask>(&task)) {
    std::memset(reinterpret_cast<void*>(fill->destination), fill->byte, fill->nbytes);
  } else if (auto* record = std::get_if<RecordTask>(&task)) {
    record->event->reached(record->generation);
  } else if (auto* wait = std::get_if<WaitTask>(&task)) {
    wait->progress->wait_until(wait->target, kIdleSpin);
  }
}

void Stream::remember_failure(const char* what) noexcept {
  const std::lock_guard lock(failure_mutex_);
  try {
    if (failure_.empty()) failure_ = what;
  } catch (const std::bad_alloc&) {
    failure_ = "memory";  // fits the string itself
  }
}

}  // namespace aether::cpu
