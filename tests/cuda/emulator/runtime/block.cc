// A block: its threads in an order that the seed draws again whenever one of them waits, barriers, and what waits in vain.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "launch.h"

namespace aether::emulation {

Launch launch;
std::mutex one_at_a_time;

uint32_t Launch::draw(uint32_t bound) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<uint32_t>((random >> 32) * bound >> 32);
}

std::string name_of(const Thread &thread) {
    char text[64];
    snprintf(text, sizeof text, "thread (%u, %u, %u)", thread.index.x, thread.index.y, thread.index.z);
    return text;
}

void fail(const char *format, ...) {
    char what[1024], where[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const uint3 &block = launch.block_index;
    snprintf(where, sizeof where, "%s: block (%u, %u, %u), ", launch.kernel, block.x, block.y, block.z);
    launch.error = where + (launch.current == nullptr ? "" : name_of(*launch.current) + ": ") + what + ".";
    if (launch.current == nullptr) throw std::string(launch.error);
    leave_fiber();
    __builtin_unreachable();
}

int lane_id() { return launch.current->number % kWarpSize; }
int warp_id() { return launch.current->number / kWarpSize; }

void make_ready(Thread &thread) {
    thread.state = State::kReady;
    launch.ready.push_back(thread.number);
}

namespace {

void thread_body() {
    launch.entry(launch.arguments);
    Thread &thread = *launch.current;
    commit_copies();
    for (const std::vector<Copy> &group : thread.copy_groups) {
        if (!group.empty()) fail("it ends with asynchronous copies that it never waited for");
    }
    thread.state = State::kEnded;
    leave_fiber();
}

std::string whereabouts(const Thread &thread) {
    switch (thread.state) {
        case State::kEnded: return "has ended";
        case State::kAtBarrier:
            return thread.barrier_id == 0 ? "waits at __syncthreads"
                                          : "waits at named barrier " + std::to_string(thread.barrier_id);
        case State::kAtWarpOperation: return std::string("waits at ") + thread.operation;
        case State::kAtCopyBarrier: return "waits at a barrier in shared memory";
        case State::kAtClusterBarrier: return "waits at the barrier of the cluster";
        case State::kReady: return "is ready";
    }
    return "";
}

bool is_at(const Thread &thread, const char *operation, unsigned mask) {
    return thread.state == State::kAtWarpOperation && thread.mask == mask && strcmp(thread.operation, operation) == 0;
}

bool is_awaited(const Thread &waiting, const Thread &other) {
    if (&waiting == &other) return false;
    if (waiting.state == State::kAtCopyBarrier || waiting.state == State::kAtClusterBarrier) {
        return other.state != waiting.state || other.copy_barrier != waiting.copy_barrier;
    }
    if (waiting.state == State::kAtBarrier) {
        return other.state != State::kAtBarrier || other.barrier_id != waiting.barrier_id;
    }
    const bool is_in_mask = other.number / kWarpSize == waiting.number / kWarpSize &&
                            (waiting.mask >> other.number % kWarpSize & 1) != 0;
    return is_in_mask && !is_at(other, waiting.operation, waiting.mask);
}

// Nobody can go on: say who waits where, and who does not come.
void report_divergence() {
    for (Thread &waiting : launch.threads) {
        if (waiting.state == State::kEnded) continue;
        for (const Thread &other : launch.threads) {
            if (!is_awaited(waiting, other)) continue;
            launch.current = &waiting;
            const uint3 &block = launch.block_index;
            char where[256];
            snprintf(where, sizeof where, "%s: block (%u, %u, %u), ", launch.kernel, block.x, block.y, block.z);
            launch.error = where + name_of(waiting) + " " + whereabouts(waiting) + ", to which " + name_of(other) +
                           " does not come: it " + whereabouts(other) + ".";
            return;
        }
    }
    launch.error = std::string(launch.kernel) + ": all threads of a block wait, each for another one.";
}

}  // namespace

void wait_in(State state) {
    launch.current->state = state;
    leave_fiber();
}

void barrier(int id, int count, Place place) {
    Thread &mine = *launch.current;
    Barrier &here = launch.barriers[id];
    mine.barrier_id = id;
    if (here.num_waiting == 0) {
        here = {count, mine.number, place};
    } else if (here.count != count) {
        fail("it expects %d threads at barrier %d where another one expects %d", count, id, here.count);
    } else if (here.place.line != place.line || strcmp(here.place.file, place.file) != 0) {
        fail("it waits at the barrier of %s:%d while %s waits at that of %s:%d", place.file, place.line,
             name_of(launch.threads[here.first]).c_str(), here.place.file, here.place.line);
    }
    if (++here.num_waiting < count) return wait_in(State::kAtBarrier);
    here.num_waiting = 0;
    note_block_barrier();
    for (Thread &other : launch.threads) {
        if (other.state == State::kAtBarrier && other.barrier_id == id) make_ready(other);
    }
    launch.ready.push_back(mine.number);
    wait_in(State::kReady);
}

void block_barrier(Place place) { barrier(0, launch.num_threads, place); }

void warp_operation(const char *name, unsigned mask, WarpOperation operation, LaneOperands operands,
                    bool orders_memory) {
    Thread &mine = *launch.current;
    const int lane = lane_id(), first = mine.number - lane;
    if ((mask >> lane & 1) == 0) fail("it calls %s with mask 0x%08x, in which it is not", name, mask);
    mine.operation = name;
    mine.mask = mask;
    mine.operands = operands;
    LaneOperands *lanes[kWarpSize] = {};
    for (int i = 0; i < kWarpSize && first + i < launch.num_threads; ++i) {
        if ((mask >> i & 1) == 0) continue;
        Thread &other = launch.threads[first + i];
        if (i != lane) {
            if (other.state == State::kEnded) {
                fail("it calls %s with mask 0x%08x, to which %s does not come: it has ended", name, mask,
                     name_of(other).c_str());
            }
            if (!is_at(other, name, mask)) return wait_in(State::kAtWarpOperation);
        }
        lanes[i] = &other.operands;
    }
    if (operation != nullptr) {
        launch.is_in_operation = true;
        operation(lanes);
        launch.is_in_operation = false;
    }
    if (orders_memory) note_warp_barrier(first / kWarpSize, mask);
    for (int i = 0; i < kWarpSize; ++i) {
        if (lanes[i] != nullptr && i != lane) make_ready(launch.threads[first + i]);
    }
    if (launch.draw(2) == 0) {
        launch.ready.push_back(mine.number);
        wait_in(State::kReady);
    }
}

void prepare_block() {
    begin_block_races();
    for (Barrier &one : launch.barriers) one = Barrier();
    launch.copy_barriers.clear();
    for (Thread &thread : launch.threads) {
        thread.open_copies.clear();
        thread.copy_groups.clear();
        prepare_fiber(thread, thread_body);
        thread.state = State::kReady;
    }
}

void run_block() {
    launch.ready.clear();
    for (Thread &thread : launch.threads) {
        if (thread.state == State::kReady || thread.state == State::kAtClusterBarrier) make_ready(thread);
    }
    while (launch.error.empty() && (!launch.ready.empty() || !launch.tile_copies.empty())) {
        const bool is_copied = !launch.tile_copies.empty() && (launch.ready.empty() || launch.draw(64) == 0);
        if (is_copied) {
            finish_a_tile_copy();
            continue;
        }
        const size_t chosen = launch.draw(launch.ready.size());
        const int number = launch.ready[chosen];
        launch.ready[chosen] = launch.ready.back();
        launch.ready.pop_back();
        launch.current = &launch.threads[number];
        launch.thread_index = launch.current->index;
        switch_to(*launch.current);
    }
    if (!launch.error.empty()) return;
    for (const Thread &thread : launch.threads) {
        if (thread.state != State::kEnded && thread.state != State::kAtClusterBarrier) return report_divergence();
    }
    launch.current = nullptr;
}

}  // namespace aether::emulation
