// What the emulated CUDA language (include/) asks of the runtime.
//
// One operating system thread runs a launch. The threads of a block are fibers on it, and blocks run one after another.
#pragma once

#include <cstddef>
#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern const uint3 &threadIdx;
extern const uint3 &blockIdx;
extern const dim3 &blockDim;
extern const dim3 &gridDim;

namespace aether::emulation {

constexpr int kWarpSize = 32;
constexpr unsigned kFullMask = 0xffffffffu;

// Ends the launch with a message that begins with the names of kernel, block and thread.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

int lane_id();
int warp_id();

// A line of a kernel's source.
struct Place {
    const char *file = __builtin_FILE();
    int line = __builtin_LINE();
};

// Waits until `count` threads have come to barrier `id`, all of them at one place of the source. The block's own barrier
// is number 0 with all its threads.
void barrier(int id, int count, Place place);
void block_barrier(Place place);

// What a lane brings to an operation of its warp. It lies on the lane's stack until the operation is done.
struct LaneOperands {
    const void *in;
    void *out;
    int argument;
};

// Does an operation once all lanes of a mask have come to it; lanes that are not in the mask are null.
using WarpOperation = void (*)(LaneOperands *const lanes[kWarpSize]);

// Waits for all lanes of `mask`; the last one does the operation for all. Only `orders_memory` makes what lanes wrote
// to memory known to one another, which no shuffle does.
void warp_operation(const char *name, unsigned mask, WarpOperation operation, LaneOperands mine,
                    bool orders_memory = false);

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Ends the launch unless the current thread may access these bytes now: inside an allocation or the block's shared
// memory, aligned, and not in a race with another thread of the block. `where` is the address of the code.
void check_access(const void *pointer, size_t nbytes, Access access, const void *where = nullptr);
void check_alignment(const void *pointer, size_t alignment, const char *what);
void check_is_shared(const void *pointer, size_t nbytes, const char *what);

// Asynchronous copies of the current thread: they happen when they are waited for, and until then nobody may use where
// they go to.
void copy_async(void *destination, const void *source, int nbytes, int source_nbytes);
void commit_copies();
void wait_for_copies(int pending_groups);

}  // namespace aether::emulation
