// Running a launch: every block of the grid, in an order that the seed draws.
#include "api.h"

#include <link.h>

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
    reserve_stacks(launch.num_threads);
    launch.threads.resize(launch.num_threads);
    for (int i = 0; i < launch.num_threads; ++i) {
        const unsigned x = launch.block.x, y = launch.block.y, n = i;
        launch.threads[i].number = i;
        launch.threads[i].index = {n % x, n / x % y, n / (x * y)};
    }
}

void run_blocks() {
    std::vector<uint32_t> order(static_cast<size_t>(launch.grid.x) * launch.grid.y * launch.grid.z);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[launch.draw(i)]);
    for (const uint32_t n : order) {
        launch.block_index = {n % launch.grid.x, n / launch.grid.x % launch.grid.y, n / (launch.grid.x * launch.grid.y)};
        for (const SharedMemory &shared : launch.shared) {
            memset(reinterpret_cast<void *>(shared.begin), kPoison, shared.end - shared.begin);
        }
        run_block();
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
