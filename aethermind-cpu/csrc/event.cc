#include "event.h"

#include "clock.h"

namespace aether::cpu {

void Event::record(Stream& stream) {
  uint64_t generation;
  {
    const std::lock_guard lock(mutex_);
    generation = ++generation_;
    reached_at_ns_.reset();
  }
  // Without the lock: a full queue empties only if the stream can complete recordings of this event meanwhile.
  const uint64_t number = stream.submit(RecordTask{shared_from_this(), generation});
  const std::lock_guard lock(mutex_);
  if (generation == generation_) mark_ = {stream.progress(), number};
}

bool Event::query() const {
  const WaitTask current = mark();
  return current.progress == nullptr || current.progress->value() >= current.target;
}

void Event::synchronize() const {
  const WaitTask current = mark();
  if (current.progress != nullptr) current.progress->wait_until(current.target, kHostSpin);
}

void Event::make_wait(Stream& stream) const {
  WaitTask current = mark();
  if (current.progress != nullptr) stream.submit(std::move(current));
}

std::optional<int64_t> Event::reached_at_ns() const {
  const std::lock_guard lock(mutex_);
  return reached_at_ns_;
}

void Event::reached(uint64_t generation) noexcept {
  const int64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  if (generation == generation_) reached_at_ns_ = now;
}

WaitTask Event::mark() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

}  // namespace aether::cpu
