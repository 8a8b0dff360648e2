// The state of the launch that is running, shared by the runtime's files.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "emulation_runtime.h"

namespace aether::emulation {

struct Copy {
    void *destination;
    const void *source;
    int nbytes;
    int source_nbytes;
};

enum class State : uint8_t { kReady, kAtBarrier, kAtWarpOperation, kAtCopyBarrier, kAtClusterBarrier, kEnded };

struct Thread {
    void *stack_pointer = nullptr;
    uint3 index{};
    int number = 0;
    int stack = 0;
    State state = State::kReady;
    int barrier_id = 0;
    uintptr_t copy_barrier = 0;
    const char *operation = nullptr;
    unsigned mask = 0;
    LaneOperands operands{};
    std::vector<Copy> open_copies;
    std::deque<std::vector<Copy>> copy_groups;
};

struct Barrier {
    int count = 0;
    int first = 0;  // the number of the thread that came first
    Place place = {"", 0};
    int num_waiting = 0;
};

constexpr int kNumBarriers = 16;

// A barrier in shared memory (mbarrier).
struct CopyBarrier {
    int count = 0;
    int num_pending = 0;
    int64_t num_bytes = 0;  // that its phase waits for; below zero where they came before they were expected
    bool phase = false;
};

// A tile on its way to shared memory.
struct TileCopy {
    unsigned char *destination;
    uintptr_t barrier;
    const unsigned char *source;
    int64_t pitch;  // bytes between rows of the source
    int num_rows;
    int rows_there;  // those inside of the matrix, and the bytes of each
    int bytes_there;
};

// The memory that the threads of a block share: statically declared arrays, and what the launch asked for beside them.
struct SharedMemory {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    bool contains(uintptr_t address) const { return address >= begin && address < end; }
};

// What a block of a cluster leaves behind while another one runs.
struct Parked {
    std::vector<Thread> threads;
    std::vector<unsigned char> shared[2];
    std::map<uintptr_t, CopyBarrier> copy_barriers;
    uint3 block_index{};
    bool has_ended = false;
};

struct Launch {
    const char *kernel = "";
    void (*entry)(void **) = nullptr;
    void **arguments = nullptr;
    dim3 grid, block;
    uint3 block_index{}, thread_index{};
    int num_threads = 0;
    uint64_t random = 0;
    bool is_in_operation = false;  // what stands for an instruction runs, whose own memory is no business of a kernel's
    std::vector<Thread> threads;
    std::vector<int> ready;
    std::map<uintptr_t, CopyBarrier> copy_barriers;
    std::vector<TileCopy> tile_copies;
    std::vector<Parked> cluster;
    int rank = 0;  // of the block in it
    Barrier barriers[kNumBarriers];
    Thread *current = nullptr;
    void *scheduler_stack_pointer = nullptr;
    SharedMemory shared[2];
    std::string error;

    uint32_t draw(uint32_t bound);
    bool has_shared(uintptr_t address) const { return shared[0].contains(address) || shared[1].contains(address); }
};

extern Launch launch;

// Held by every call from outside.
extern std::mutex one_at_a_time;

// fibers.cc
void prepare_fiber(Thread &thread, void (*body)());
void switch_to(Thread &thread);
void leave_fiber();
bool is_fiber_stack(uintptr_t address);
void reserve_stacks(int num_threads, int num_blocks);

// block.cc
void prepare_block();
void run_block();  // until its threads have ended or wait for the cluster
void make_ready(Thread &thread);
void wait_in(State state);
std::string name_of(const Thread &thread);

// tile_copies.cc
void finish_a_tile_copy();

// races.cc
void begin_block_races();
void note_block_barrier();
void note_warp_barrier(int warp, unsigned mask);
void note_copy(uintptr_t address, size_t nbytes, bool is_under_way);
void note_shared_access(uintptr_t address, size_t nbytes, Access access, const void *where);

// memory.cc
std::string place_of(const void *code);
void open_memory();
void close_memory();
void catch_faults(bool on);

}  // namespace aether::emulation
