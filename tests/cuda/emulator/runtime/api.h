// What Python calls. Addresses are device addresses; a result of 0 is success unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A kernel of a module, in the table that the builder writes at the end of its source.
struct EmulatorKernel {
    const char *name;
    void (*entry)(void **);  // takes an address for each argument
    int num_parameters;
    const int *sizes;
    const int *alignments;
    const char *kinds;  // p pointer, i integer, f float, s structure
    int max_threads;    // of __launch_bounds__, or 0
    int cluster;        // blocks of __cluster_dims__
};

struct EmulatorLaunch {
    const EmulatorKernel *kernel;
    void *dynamic_shared;  // of the module, in this thread
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_nbytes;
    uint64_t seed;
    void **arguments;
    char *message;
    size_t message_nbytes;
};

// 0 when there is no memory left. The memory is full of garbage.
uintptr_t emulator_allocate(size_t nbytes, size_t alignment, const char *name);
int emulator_free(uintptr_t address);

// `kind` has bit 0 where the source is device memory, bit 1 where the destination is.
int emulator_copy(void *destination, const void *source, size_t nbytes, int kind);
int emulator_fill(uintptr_t address, size_t nbytes, size_t width, uint32_t value);

// 1 with a message when the kernel did something that it must not do.
int emulator_launch(const EmulatorLaunch *request);
}
