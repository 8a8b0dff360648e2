// Races for shared memory: two threads of a block use a byte, one of them writes, and nothing orders the two.
//
// The block's barriers order everything, and __syncwarp orders what its warp does; shuffles and votes order nothing.
#include <algorithm>

#include "launch.h"

namespace aether::emulation {
namespace {

// When a thread used a byte last. Moments only grow, so what an earlier block or launch left behind is long ago.
struct Use {
    uint32_t block_moment = 0;
    uint32_t warp_moment = 0;
    uint16_t thread = 0;
};

struct Byte {
    Use write;
    Use reads[2];  // by the last thread, and by the last one before it that was another
    bool is_atomic = false;
    uint32_t copied_in = 0;  // the block in which an asynchronous copy to it is under way
};

uint32_t block_moment = 1;
uint32_t block_begin = 0;
uint32_t warp_moments[kWarpSize];
std::vector<Byte> history[2];

bool is_ordered(const Use &earlier, int thread) {
    if (earlier.block_moment < block_moment || earlier.thread == thread) return true;
    const int warp = thread / kWarpSize;
    return earlier.thread / kWarpSize == warp && earlier.warp_moment < warp_moments[warp];
}

void report(const char *what, const Use &earlier, const char *did, uintptr_t offset, const void *where) {
    const std::string other = name_of(launch.threads[earlier.thread]);
    fail("race for byte %zu of shared memory: it %s at %s what %s %s, with no __syncthreads or __syncwarp between",
         static_cast<size_t>(offset), what, place_of(where).c_str(), other.c_str(), did);
}

}  // namespace

void begin_block_races() {
    block_begin = ++block_moment;
    for (int i = 0; i < 2; ++i) {
        const size_t nbytes = launch.shared[i].end - launch.shared[i].begin;
        if (history[i].size() < nbytes) history[i].resize(nbytes);
    }
}

void note_block_barrier() { ++block_moment; }

void note_warp_barrier(int warp, unsigned) { ++warp_moments[warp]; }

void note_copy(uintptr_t address, size_t nbytes, bool is_under_way) {
    const int region = launch.shared[0].contains(address) ? 0 : 1;
    Byte *bytes = &history[region][address - launch.shared[region].begin];
    for (size_t i = 0; i < nbytes; ++i) bytes[i].copied_in = is_under_way ? block_begin : 0;
}

void note_shared_access(uintptr_t address, size_t nbytes, Access access, const void *where) {
    const int region = launch.shared[0].contains(address) ? 0 : 1;
    const uintptr_t offset = address - launch.shared[region].begin;
    const int thread = launch.current->number;
    const Use now{block_moment, warp_moments[thread / kWarpSize], static_cast<uint16_t>(thread)};
    for (size_t i = 0; i < nbytes; ++i) {
        Byte &byte = history[region][offset + i];
        if (byte.copied_in == block_begin) {
            fail("it uses byte %zu of shared memory at %s while an asynchronous copy to it is under way",
                 static_cast<size_t>(offset + i), place_of(where).c_str());
        }
        const bool both_atomic = access == Access::kAtomic && byte.is_atomic;
        if (!both_atomic && !is_ordered(byte.write, thread)) {
            report(access == Access::kRead ? "reads" : "writes", byte.write, "wrote", offset + i, where);
        }
        if (access == Access::kRead) {
            if (byte.reads[0].thread != thread) byte.reads[1] = byte.reads[0];
            byte.reads[0] = now;
            continue;
        }
        for (const Use &read : byte.reads) {
            if (!is_ordered(read, thread)) report("writes", read, "read", offset + i, where);
        }
        byte.write = now;
        byte.is_atomic = access == Access::kAtomic;
    }
}

}  // namespace aether::emulation
