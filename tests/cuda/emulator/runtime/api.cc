// Running a launch: every block of the grid, in an order that the seed draws.
#include "api.h"

#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "launch.h"

namespace {

using namespace aether::emulation;

constexpr int kPoison = 0xff;
constexpr size_t kMaxSharedBytes = 232448;
constexpr size_t kMaxStaticSharedBytes = 49152;

struct Search {
    uintptr_t code;
    SharedMemory found;
};

// Statically declared shared arrays are the thread-local storage of the kernel's module, up to `dynamic`.
int find_static_shared(dl_phdr_info *info, size_t, void *data) {
    auto *search = static_cast<Search *>(data);
    bool is_it = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto &header = info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
        is_it |= header.p_type == PT_LOAD && search->code >= begin && search->code < begin + header.p_memsz;
    }
    if (!is_it) return 0;
    search->found.begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
    return 1;
}

void place_shared_memory(const EmulatorLaunch &request) {
    Search search{reinterpret_cast<uintptr_t>(request.kernel->entry), {}};
    dl_iterate_phdr(find_static_shared, &search);
    const auto dynamic = reinterpret_cast<uintptr_t>(request.dynamic_shared);
    launch.shared[0] = {search.found.begin, dynamic};
    launch.shared[1] = {dynamic, dynamic + request.shared_nbytes};
    const size_t num_static = dynamic - search.found.begin;
    if (request.shared_nbytes > kMaxSharedBytes) {
        fail("%u bytes of shared memory are asked for, and a block has %zu", request.shared_nbytes, kMaxSharedBytes);
    }
    if (num_static > kMaxStaticSharedBytes + 1024) {
        fail("it declares about %zu bytes of shared memory, and 49152 can be declared", num_static);
    }
}

void place_threads(const EmulatorLaunch &request) {
    launch.grid = dim3(request.grid[0], request.grid[1], request.grid[2]);
    launch.block = dim3(request.block[0], request.block[1], request.block[2]);
    launch.num_threads = request.block[0] * request.block[1] * request.block[2];
    const int limit = request.kernel->max_threads;
    if (launch.num_threads == 0 || request.grid[0] * request.grid[1] * request.grid[2] == 0) {
        fail("a grid of (%u, %u, %u) blocks of (%u, %u, %u) threads is empty", request.grid[0], request.grid[1],
             request.grid[2], request.block[0], request.block[1], request.block[2]);
    }
    if (request.grid[1] > 65535 || request.grid[2] > 65535) {
        fail("a grid has at most 65535 blocks along y and z, not %u and %u", request.grid[1], request.grid[2]);
    }
    if (limit > 0 && launch.num_threads > limit) {
        fail("blocks of %d threads exceed its __launch_bounds__ of %d", launch.num_threads, limit);
    }
    const int cluster = request.kernel->cluster;
    if (request.grid[0] % cluster != 0) fail("%u blocks are no multiple of a cluster of %d", request.grid[0], cluster);
    launch.cluster.assign(cluster, Parked());
    launch.tile_copies.clear();
    reserve_stacks(launch.num_threads, cluster);
    launch.threads.resize(launch.num_threads);
    for (int i = 0; i < launch.num_threads; ++i) {
        const unsigned x = launch.block.x, y = launch.block.y, n = i;
        launch.threads[i].number = i;
        launch.threads[i].index = {n % x, n / x % y, n / (x * y)};
    }
}

void begin_block(uint32_t number) {
    const dim3 &grid = launch.grid;
    launch.block_index = {number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)};
    for (Thread &thread : launch.threads) thread.stack = thread.number + launch.rank * launch.num_threads;
    for (const SharedMemory &shared : launch.shared) {
        memset(reinterpret_cast<void *>(shared.begin), kPoison, shared.end - shared.begin);
    }
    prepare_block();
}

void park(Parked &place) {
    place.threads = std::move(launch.threads);
    place.copy_barriers = std::move(launch.copy_barriers);
    place.block_index = launch.block_index;
    for (int i = 0; i < 2; ++i) {
        const auto *begin = reinterpret_cast<const unsigned char *>(launch.shared[i].begin);
        place.shared[i].assign(begin, begin + (launch.shared[i].end - launch.shared[i].begin));
    }
}

void fetch(Parked &place) {
    launch.threads = std::move(place.threads);
    launch.copy_barriers = std::move(place.copy_barriers);
    launch.block_index = place.block_index;
    for (int i = 0; i < 2; ++i) {
        memcpy(reinterpret_cast<void *>(launch.shared[i].begin), place.shared[i].data(), place.shared[i].size());
    }
    note_block_barrier();
}

bool have_ended(const std::vector<Thread> &threads) {
    return std::all_of(threads.begin(), threads.end(),
                       [](const Thread &thread) { return thread.state == State::kEnded; });
}

template <class T>
void shuffle(std::vector<T> &items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[launch.draw(i)]);
}

// The blocks of a cluster in turns, each of them until its threads wait for the others.
void run_cluster(uint32_t first, const std::vector<Thread> &threads) {
    std::vector<int> order(launch.cluster.size());
    std::iota(order.begin(), order.end(), 0);
    launch.cluster.assign(launch.cluster.size(), Parked());
    for (bool is_begun = false, is_over = false; !is_over; is_begun = true) {
        shuffle(order);
        std::vector<Parked> parked(order.size());  // at the next barrier; others read what a block had at this one
        for (const int rank : order) {
            launch.rank = rank;
            if (is_begun) {
                fetch(launch.cluster[rank]);
            } else {
                launch.threads = threads;
                begin_block(first + rank);
            }
            run_block();
            if (!launch.error.empty()) return;
            launch.cluster[rank].has_ended = have_ended(launch.threads);
            park(parked[rank]);
        }
        launch.cluster.swap(parked);
        is_over = parked[0].has_ended;
        for (const Parked &place : parked) {
            if (place.has_ended != is_over) fail("a block of a cluster has ended, and another one waits for it");
        }
    }
}

void run_blocks() {
    const size_t num_blocks = static_cast<size_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    std::vector<uint32_t> order(num_blocks / launch.cluster.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i * launch.cluster.size();
    shuffle(order);
    const std::vector<Thread> threads = launch.threads;
    launch.rank = 0;
    for (const uint32_t first : order) {
        if (launch.cluster.size() == 1) {
            begin_block(first);
            run_block();
        } else {
            run_cluster(first, threads);
        }
        if (!launch.error.empty()) return;
    }
}

}  // namespace

int emulator_launch(const EmulatorLaunch *request) {
    const std::lock_guard<std::mutex> guard(one_at_a_time);
    launch.kernel = request->kernel->name;
    launch.entry = request->kernel->entry;
    launch.arguments = request->arguments;
    launch.random = request->seed * 0x9e3779b97f4a7c15u + 0xd1b54a32d192ed03u;
    launch.error.clear();
    launch.current = nullptr;
    launch.block_index = {};
    launch.is_in_operation = false;
    for (int i = 0; i < 8; ++i) launch.draw(2);
    try {
        place_shared_memory(*request);
        place_threads(*request);
        open_memory();
        catch_faults(true);
        run_blocks();
        catch_faults(false);
        close_memory();
    } catch (const std::string &) {
    }
    launch.current = nullptr;
    if (launch.error.empty()) return 0;
    snprintf(request->message, request->message_nbytes, "%s", launch.error.c_str());
    return 1;
}
