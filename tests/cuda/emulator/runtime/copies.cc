// Copies that are under way while a thread goes on, and the thread's coordinates.
#include <cstring>

#include "launch.h"

const uint3 &threadIdx = aether::emulation::launch.thread_index;
const uint3 &blockIdx = aether::emulation::launch.block_index;
const dim3 &blockDim = aether::emulation::launch.block;
const dim3 &gridDim = aether::emulation::launch.grid;

namespace aether::emulation {
namespace {

constexpr int kPoison = 0xff;

void finish(const Copy &copy) {
    note_copy(reinterpret_cast<uintptr_t>(copy.destination), copy.nbytes, false);
    check_access(copy.destination, copy.nbytes, Access::kWrite);
    memcpy(copy.destination, copy.source, copy.source_nbytes);
    memset(static_cast<char *>(copy.destination) + copy.source_nbytes, 0, copy.nbytes - copy.source_nbytes);
}

}  // namespace

void copy_async(void *destination, const void *source, int nbytes, int source_nbytes) {
    if (nbytes != 4 && nbytes != 8 && nbytes != 16) fail("cp.async copies 4, 8 or 16 bytes, not %d", nbytes);
    if (source_nbytes < 0 || source_nbytes > nbytes) fail("cp.async takes %d of %d bytes", source_nbytes, nbytes);
    check_alignment(destination, nbytes, "cp.async writes");
    check_is_shared(destination, nbytes, "cp.async writes");
    const void *where = __builtin_return_address(0);
    if (source_nbytes > 0) {
        check_alignment(source, nbytes, "cp.async reads");
        check_access(source, source_nbytes, Access::kRead, where);
    }
    check_access(destination, nbytes, Access::kWrite, where);
    memset(destination, kPoison, nbytes);
    note_copy(reinterpret_cast<uintptr_t>(destination), nbytes, true);
    launch.current->open_copies.push_back({destination, source, nbytes, source_nbytes});
}

void commit_copies() {
    Thread &thread = *launch.current;
    thread.copy_groups.push_back(std::move(thread.open_copies));
    thread.open_copies.clear();
}

void wait_for_copies(int pending_groups) {
    auto &groups = launch.current->copy_groups;
    while (groups.size() > static_cast<size_t>(pending_groups)) {
        for (const Copy &copy : groups.front()) finish(copy);
        groups.pop_front();
    }
}

}  // namespace aether::emulation
