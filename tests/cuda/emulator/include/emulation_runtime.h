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

// A matrix of 16-bit elements, of which tiles of `box_rows` rows of 128 bytes are copied: what a tensor map is here.
struct TileMap {
    uint64_t address;
    int64_t num_rows;
    int64_t num_columns;
    int64_t row_bytes;
    int box_rows;
};

// Barriers in shared memory (mbarrier), each for `count` threads and the bytes that are added when they arrive.
void initialize_copy_barrier(void *barrier, int count);
void arrive_at_copy_barrier(void *barrier, int num_bytes);
void wait_at_copy_barrier(void *barrier, bool phase);

// A tile in the 128-byte swizzle, with zeros outside of the matrix. It is there some time later, and until then nobody
// may use where it goes to; its bytes complete on the barrier.
void copy_tile(void *destination, const TileMap &map, int row, int column, void *barrier);

// The blocks of a cluster run in turns, from one of its barriers to the next, and read what others had there.
int cluster_rank();
void synchronize_cluster();
void read_of_rank(void *to, const void *shared, size_t nbytes, int rank);

}  // namespace aether::emulation
