// Copies of tiles by the tensor memory accelerator, the barriers in shared memory on which they complete, and clusters.
#include <algorithm>
#include <cstring>

#include "launch.h"

namespace aether::emulation {
namespace {

constexpr int kRowBytes = 128;
constexpr int kPieceBytes = 16;
constexpr int kPieces = kRowBytes / kPieceBytes;
constexpr int kSwizzledRows = 8;
constexpr int kElementBytes = 2;
constexpr int kPoison = 0xff;

CopyBarrier &barrier_at(const void *barrier) {
    const auto found = launch.copy_barriers.find(reinterpret_cast<uintptr_t>(barrier));
    if (found == launch.copy_barriers.end()) fail("it uses a barrier in shared memory that was not initialised");
    return found->second;
}

// The end of a phase orders the block's memory as one of its barriers does, which is more than a GPU promises.
void end_phase_if_due(CopyBarrier &one, uintptr_t address) {
    if (one.num_pending > 0 || one.num_bytes != 0) return;
    one.phase = !one.phase;
    one.num_pending = one.count;
    note_block_barrier();
    for (Thread &thread : launch.threads) {
        if (thread.state == State::kAtCopyBarrier && thread.copy_barrier == address) make_ready(thread);
    }
}

}  // namespace

void initialize_copy_barrier(void *barrier, int count) {
    check_is_shared(barrier, sizeof(uint64_t), "a barrier is initialised");
    check_alignment(barrier, sizeof(uint64_t), "a barrier is initialised");
    launch.copy_barriers[reinterpret_cast<uintptr_t>(barrier)] = {count, count, 0, false};
}

void arrive_at_copy_barrier(void *barrier, int num_bytes) {
    CopyBarrier &one = barrier_at(barrier);
    if (one.num_pending == 0) fail("more threads arrive at a barrier in shared memory than the %d it is for", one.count);
    one.num_bytes += num_bytes;
    --one.num_pending;
    end_phase_if_due(one, reinterpret_cast<uintptr_t>(barrier));
}

void wait_at_copy_barrier(void *barrier, bool phase) {
    while (barrier_at(barrier).phase == phase) {
        launch.current->copy_barrier = reinterpret_cast<uintptr_t>(barrier);
        wait_in(State::kAtCopyBarrier);
    }
}

void copy_tile(void *destination, const TileMap &map, int row, int column, void *barrier) {
    const int nbytes = map.box_rows * kRowBytes;
    check_alignment(destination, kSwizzledRows * kRowBytes, "a tile is copied");
    check_is_shared(destination, nbytes, "a tile is copied");
    barrier_at(barrier);
    const auto rows = static_cast<int>(std::clamp<int64_t>(map.num_rows - row, 0, map.box_rows));
    const auto bytes = static_cast<int>(std::clamp<int64_t>((map.num_columns - column) * kElementBytes, 0, kRowBytes));
    const auto *source =
        reinterpret_cast<const unsigned char *>(map.address) + row * map.row_bytes + column * kElementBytes;
    const void *where = __builtin_return_address(0);
    for (int i = 0; i < rows && bytes > 0; ++i) {
        check_access(source + i * map.row_bytes, bytes, Access::kRead, where);
    }
    check_access(destination, nbytes, Access::kWrite, where);
    memset(destination, kPoison, nbytes);
    note_copy(reinterpret_cast<uintptr_t>(destination), nbytes, true);
    launch.tile_copies.push_back({static_cast<unsigned char *>(destination), reinterpret_cast<uintptr_t>(barrier),
                                  source, map.row_bytes, map.box_rows, rows, bytes});
}

void finish_a_tile_copy() {
    const size_t chosen = launch.draw(launch.tile_copies.size());
    const TileCopy copy = launch.tile_copies[chosen];
    launch.tile_copies.erase(launch.tile_copies.begin() + chosen);
    const int nbytes = copy.num_rows * kRowBytes;
    note_copy(reinterpret_cast<uintptr_t>(copy.destination), nbytes, false);
    for (int row = 0; row < copy.num_rows; ++row) {
        unsigned char line[kRowBytes] = {};
        if (row < copy.rows_there) memcpy(line, copy.source + row * copy.pitch, copy.bytes_there);
        for (int piece = 0; piece < kPieces; ++piece) {
            memcpy(copy.destination + row * kRowBytes + (piece ^ row % kSwizzledRows) * kPieceBytes,
                   line + piece * kPieceBytes, kPieceBytes);
        }
    }
    CopyBarrier &one = launch.copy_barriers[copy.barrier];
    one.num_bytes -= nbytes;
    end_phase_if_due(one, copy.barrier);
}

int cluster_rank() { return launch.rank; }

void synchronize_cluster() {
    if (launch.cluster.size() == 1) fail("it waits for its cluster, and its kernel has no __cluster_dims__");
    launch.current->copy_barrier = 0;
    wait_in(State::kAtClusterBarrier);
}

void read_of_rank(void *to, const void *shared, size_t nbytes, int rank) {
    check_is_shared(shared, nbytes, "shared memory of a cluster is read");
    if (rank < 0 || rank >= static_cast<int>(launch.cluster.size())) fail("the cluster has no block %d", rank);
    if (rank == launch.rank) {
        check_access(shared, nbytes, Access::kRead, __builtin_return_address(0));
        memcpy(to, shared, nbytes);
        return;
    }
    if (launch.cluster[rank].has_ended) fail("it reads shared memory of block %d of its cluster, which has ended", rank);
    const auto address = reinterpret_cast<uintptr_t>(shared);
    const int region = launch.shared[0].contains(address) ? 0 : 1;
    if (launch.cluster[rank].shared[region].empty()) {
        fail("it reads shared memory of block %d of its cluster, with no barrier of the cluster before", rank);
    }
    memcpy(to, launch.cluster[rank].shared[region].data() + (address - launch.shared[region].begin), nbytes);
}

}  // namespace aether::emulation
